use super::*;

const SCHEMES: &str = "cubic reno bbr vegas ta ta_grad ta_per cx cx_rttvar cx_shadow cx15 \
    cx15_rttvar cx15_shadow dctcp prague bbr2 bbr3";

fn connection(algorithm: &str, params: &[(&str, u32)]) -> Result<CongestionControl, CoreError> {
    let params = params.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    CongestionControl::new(algorithm, &params)
}
fn why(algorithm: &str, params: &[(&str, u32)]) -> String {
    connection(algorithm, params).unwrap_err().to_string()
}
fn ack() -> Ack {
    Ack {
        now_us: 5_000_000,
        rtt_us: 10_000,
        srtt_us: 10_000,
        rtt_min_us: 10_000,
        acked_pkts: 2,
        inflight_pkts: 18,
        prior_inflight_pkts: 20,
        cwnd_pkts: 20,
        ssthresh_pkts: 0x7fff_ffff,
        cwnd_clamp_pkts: 100_000,
        nxt_seq: 20 * 1448,
        mss_bytes: 1448,
        mtu_bytes: 1500,
        flags: ack_flags::CWND_LIMITED | ack_flags::CWND_FULL,
        ..Ack::default()
    }
}
fn stat(connection: &CongestionControl, name: &str) -> u32 {
    connection.read(&ack()).iter().find(|stat| stat.name == name).unwrap().value
}

#[test]
fn struct_sizes_match_c() {
    let rust = [size_of::<Ack>(), size_of::<CcOutput>(), size_of::<Fault>(), size_of::<Bursts>()];
    assert_eq!(rust, [1, 2, 3, 4].map(|which| cc_ffi_size(which)));
    assert!(align_of::<u64>() >= align_of::<Ack>());
}

const CC_H: &str = include_str!("../../../../kmod/core/cc.h");
const HOST_H: &str = include_str!("../../../../kmod/sim/host.h");

/// Returns what is between the braces of a definition, without comments.
fn body(header: &str, definition: &str) -> String {
    let body = header.split_once(&format!("{definition} {{")).unwrap().1.split_once('}').unwrap().0;
    let mut code = String::new();
    for part in body.split("/*") {
        code += part.split_once("*/").map_or(part, |(_, code)| code);
    }
    code
}

/// Returns the names of the fields of a C struct, in order.
fn fields_of_c(header: &str, name: &str) -> Vec<String> {
    let code = body(header, &format!("struct {name}"));
    let names = code.split([';', ',']).filter_map(|field| field.split_whitespace().last());
    names.map(|name| name.trim_start_matches('*').to_owned()).collect()
}

/// Returns the names of the fields of a Rust struct, in order.
fn fields_of_rust(value: &dyn std::fmt::Debug) -> Vec<String> {
    let text = format!("{value:?}");
    let fields = text.split_once('{').unwrap().1.split(',');
    fields.map(|field| field.split(':').next().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn field_order_matches_c() {
    let fault = Fault { name: null(), unit: null(), message: null(), value: 0, min: 0, max: 0 };
    assert_eq!(fields_of_rust(&Ack::default()), fields_of_c(CC_H, "cc_ack"));
    assert_eq!(fields_of_rust(&CcOutput::default()), fields_of_c(CC_H, "cc_out"));
    assert_eq!(fields_of_rust(&fault), fields_of_c(CC_H, "cc_fault"));
    assert_eq!(fields_of_rust(&Bursts::default()), fields_of_c(HOST_H, "cc_bursts"));
}

#[test]
fn constants_match_c() {
    let value = |name: &str| -> u32 {
        let rest = CC_H.split_once(&format!("#define {name} ")).unwrap().1;
        rest.split_whitespace().next().unwrap().trim_end_matches('u').parse().unwrap()
    };
    let flags = [
        ("CC_CWND_LIMITED", ack_flags::CWND_LIMITED),
        ("CC_APP_LIMITED", ack_flags::APP_LIMITED),
        ("CC_ECN", ack_flags::ECN),
        ("CC_CWND_FULL", ack_flags::CWND_FULL),
        ("CC_ACK_DELAYED", ack_flags::ACK_DELAYED),
    ];
    let others = [
        ("CC_OUT_ROUND", OUT_ROUND),
        ("CC_OUT_STATE", OUT_STATE),
        ("CC_OWNS_CWND", OWNS_CWND),
        ("CC_WANTS_ECN", WANTS_ECN),
        ("CC_WANTS_ECT1", WANTS_ECT1),
        ("CC_WANTS_PACING", WANTS_PACING),
        ("CC_WANTS_BURSTS", WANTS_BURSTS),
        ("CC_PARAMS_MAX", STATS_MAX as u32),
    ];
    for (name, of_rust) in flags.iter().chain(&others) {
        assert_eq!(*of_rust, value(name), "{name}");
    }
    assert_eq!(flags.iter().fold(0, |all, (_, flag)| all | flag), ack_flags::ALL);
}

#[test]
fn enums_match_c() {
    let names = |definition: &str| -> Vec<String> {
        body(CC_H, definition).split(',').map(|name| name.trim().to_owned()).collect()
    };
    let in_c = |prefix: &str, variants: &[(String, u32)]| -> Vec<String> {
        assert!(variants.iter().map(|(_, value)| *value).eq(0..variants.len() as u32));
        let upper = |name: &String| {
            let word = |c: char| if c.is_uppercase() { format!("_{c}") } else { c.to_string() };
            name.chars().map(word).collect::<String>().to_uppercase()
        };
        variants.iter().map(|(name, _)| format!("{prefix}{}", upper(name))).collect()
    };
    use CaState::{Cwr, Disorder, Loss, Open, Recovery};
    let states = [Open, Disorder, Cwr, Recovery, Loss];
    let named: Vec<_> = states.iter().map(|state| (format!("{state:?}"), *state as u32)).collect();
    assert_eq!(in_c("CC", &named), names("enum cc_ca_state"));
    let rest = [Event::Restart, Event::TxStart, Event::Rto];
    let events = states.into_iter().map(Event::from).chain(rest);
    let named: Vec<_> = events.map(|event| (format!("{event:?}"), event as u32)).collect();
    let of_c = names("enum cc_event");
    let (count, of_c) = of_c.split_last().unwrap();
    assert_eq!((in_c("CC_EVENT", &named).as_slice(), count.as_str()), (of_c, "CC_EVENTS"));
}

#[test]
fn no_scheme_starts_with_too_many_stats() {
    for name in SCHEMES.split(' ') {
        let mut connection = connection(name, &[]).unwrap();
        let out = connection.init(&ack());
        assert_eq!((out.cwnd_pkts, connection.violation()), (20, None), "{name}");
        assert!((1..STATS_MAX).contains(&connection.read(&ack()).len()), "{name}");
    }
    assert_eq!(connection("ta_grad", &[]).unwrap().name(), "ta");
}

#[test]
fn wrong_names_and_parameters_are_refused() {
    assert_eq!(why("cubik", &[]), "the simulator has no congestion control `cubik`");
    assert!(why("cubic,beta=5", &[]).contains("no congestion control `cubic,beta=5`"));
    assert!(why("cu\0bic", &[]).contains("`cu\\0bic`"));
    let of_vegas = "`vegas` has no parameter `delta` (it has alpha, beta, gamma";
    assert!(why("vegas", &[("delta", 1)]).starts_with(of_vegas));
    assert_eq!(
        why("cubic", &[("beta", 1024)]),
        "`cubic`: beta = 1024 is out of range; allowed: 1 to 1023 (1/1024)"
    );
    assert_eq!(
        why("ta", &[("P1", 20), ("comeback", 0)]),
        "`ta`: P1 = 20: periodic backoff needs comeback = 1"
    );
}

#[test]
fn requirements_depend_on_parameters() {
    let bbr = connection("bbr", &[]).unwrap();
    let paced =
        CcRequirements { owns_cwnd: true, pacing: true, bursts: true, ..CcRequirements::default() };
    assert_eq!(bbr.requirements(), paced);
    assert_eq!(bbr.bursts(149_999, 1500), Bursts { min_tso_segs: 1, pacing_shift: 10 });
    assert_eq!(connection("cubic", &[]).unwrap().requirements(), CcRequirements::default());
    assert!(!connection("bbr3", &[]).unwrap().requirements().ecn);
    assert!(connection("bbr3", &[("ecn_enable", 1)]).unwrap().requirements().ecn);
    assert!(connection("prague", &[]).unwrap().requirements().ect1);
}

/// Two packets are acknowledged in slow start. A loss leaves 22 * 717 / 1024 = 15.
#[test]
fn cubic_grows_and_backs_off() {
    let mut cubic = connection("cubic", &[]).unwrap();
    cubic.init(&ack());
    assert!(!cubic.on_sample(&ack()));
    let out = cubic.on_ack(&ack());
    assert_eq!((out.cwnd_pkts, out.pacing_bytes_per_sec, out.ends_round()), (22, 0, false));
    let lost = Ack { cwnd_pkts: 22, ..ack() };
    assert_eq!(cubic.on_loss(&lost), 15);
    assert_eq!((stat(&cubic, "wmax_pkts"), stat(&cubic, "delay_min_us")), (22, 10_000));
    assert_eq!(cubic.on_event(CaState::Recovery.into(), &lost).cwnd_pkts, 22);
    assert_eq!(cubic.undo(&Ack { prior_cwnd_pkts: 40, ..lost }), 40);
    cubic.on_event(Event::Loss, &lost);
    assert_eq!((stat(&cubic, "wmax_pkts"), cubic.violation()), (0, None));
}

/// 20 packets per 10 ms at a gain of 739/256 and 99 %. Then 20 packets delivered in 10 ms are 23.1 Mbit/s.
#[test]
fn bbr_paces_and_ends_rounds() {
    let mut bbr = connection("bbr", &[]).unwrap();
    let rate = bbr.init(&ack()).pacing_bytes_per_sec;
    assert_eq!(rate, (((33_554 * 1448 * 739) >> 8) * 990_000) >> 24);
    let sample = Ack { rate_delivered_pkts: 20, rate_interval_us: 10_000, ..ack() };
    let out = bbr.on_ack(&Ack { pacing_bytes_per_sec: rate, ..sample });
    assert!(out.ends_round());
    assert_eq!((out.cwnd_pkts, out.pacing_bytes_per_sec), (22, 0));
    assert_eq!(stat(&bbr, "bw_kbps"), 23_167);
    assert_eq!(bbr.violation(), None);
}

/// Without `init`, the state lacks the mark at its end.
#[test]
fn a_violation_is_reported_and_the_first_is_kept() {
    let mut reno = connection("reno", &[]).unwrap();
    reno.on_sample(&ack());
    reno.on_ack(&ack());
    assert_eq!(reno.violation().unwrap().to_string(), "reno: a call wrote beyond the state: 1");
}

#[test]
fn congestion_control_is_send() {
    fn send<T: Send>(_: &T) {}
    send(&connection("cubic", &[]).unwrap());
}
