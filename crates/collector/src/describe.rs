//! Describes this node: kernel, CPU, TCP settings and eBPF support. Changes nothing. Fields that cannot be read stay empty, with
//! a note.

use std::fs;
use std::os::unix::fs::MetadataExt;

use ccbench_proto::wire::NodeInfo;

/// Settings under /proc/sys that affect TCP measurements.
pub const SYSCTLS: &[&str] = &[
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_abc",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_app_win",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_child_ehash_entries",
    "net.ipv4.tcp_comp_sack_delay_ns",
    "net.ipv4.tcp_comp_sack_nr",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_dsack",
    "net.ipv4.tcp_early_retrans",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_ecn_fallback",
    "net.ipv4.tcp_ecn_option",
    "net.ipv4.tcp_ecn_option_beacon",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_frto",
    "net.ipv4.tcp_invalid_ratelimit",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_min_rtt_wlen",
    "net.ipv4.tcp_min_tso_segs",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_no_ssthresh_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_pacing_ca_ratio",
    "net.ipv4.tcp_pacing_ss_ratio",
    "net.ipv4.tcp_recovery",
    "net.ipv4.tcp_reordering",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_shrink_window",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syn_retries",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tso_rtt_log",
    "net.ipv4.tcp_tso_win_divisor",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
];

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Fills kernel, CPU, congestion control, sysctl, clock, namespace and eBPF fields of `info`. Adds a note with a hint for each
/// thing that is missing. Does not fill interfaces, qdiscs and programs.
pub fn describe(info: &mut NodeInfo) {
    let uname = rustix::system::uname();
    info.kernel = uname.release().to_string_lossy().into_owned();
    info.kernel_version = uname.version().to_string_lossy().into_owned();
    info.machine = uname.machine().to_string_lossy().into_owned();
    if info.hostname.is_empty() {
        info.hostname = uname.nodename().to_string_lossy().into_owned();
    }
    info.boot_id = read("/proc/sys/kernel/random/boot_id");
    info.cpus = cpus();
    info.cpu_model = cpu_model(&read("/proc/cpuinfo"));
    info.clocksource = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    // Kernels without time namespaces do not have the file.
    info.time_ns_inode = fs::metadata("/proc/thread-self/ns/time").map_or(0, |file| file.ino());
    info.netns_inode = fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino());
    congestion_controls(info);
    for &name in SYSCTLS {
        if let Some(value) = sysctl(name) {
            info.sysctls.insert(name.to_owned(), value);
        }
    }
    match ebpf_unavailable_reason() {
        None => info.can_ebpf = true,
        Some(reason) => {
            info.can_ebpf = false;
            info.notes.push(format!("no eBPF: {reason}; TCP samples come from inet_diag"));
        }
    }
}

fn congestion_controls(info: &mut NodeInfo) {
    let list = |name| -> Vec<String> {
        let value = sysctl(name).unwrap_or_default();
        value.split_whitespace().map(str::to_owned).collect()
    };
    info.congestion_controls = list("net.ipv4.tcp_available_congestion_control");
    info.allowed_congestion_controls = list("net.ipv4.tcp_allowed_congestion_control");
    info.default_congestion_control = sysctl("net.ipv4.tcp_congestion_control").unwrap_or_default();
    if info.congestion_controls.is_empty() {
        info.notes.push(
            "the congestion controls of this node are unknown: mount /proc so that \
             /proc/sys/net/ipv4/tcp_available_congestion_control can be read"
                .to_owned(),
        );
    }
}

/// Returns the value of a setting such as "net.ipv4.tcp_ecn", with runs of white space replaced by one space. `None` if this
/// kernel or namespace lacks the setting.
#[must_use]
pub fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

fn cpus() -> u32 {
    std::thread::available_parallelism()
        .ok()
        .and_then(|count| u32::try_from(count.get()).ok())
        .unwrap_or(1)
}

/// Returns the CPU model in /proc/cpuinfo. Its key depends on the architecture.
fn cpu_model(cpuinfo: &str) -> String {
    let value = |wanted: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    ["model name", "Model", "cpu model", "Hardware", "CPU part", "isa"]
        .into_iter()
        .find_map(value)
        .unwrap_or_default()
}

/// Returns why tracing programs cannot be loaded here, with a hint; `None` if they can.
fn ebpf_unavailable_reason() -> Option<&'static str> {
    if fs::metadata("/sys/kernel/btf/vmlinux").is_err() {
        return Some("this kernel has no /sys/kernel/btf/vmlinux (needs CONFIG_DEBUG_INFO_BTF)");
    }
    if !in_initial_user_namespace(&read("/proc/self/uid_map")) {
        return Some("the kernel refuses it inside a user namespace (run as root of the host)");
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !may_trace(effective_capabilities(&status)) {
        return Some("needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN (run as root)");
    }
    None
}

/// Returns whether this is the initial user namespace, which maps every ID to itself.
fn in_initial_user_namespace(uid_map: &str) -> bool {
    uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn may_trace(capabilities: u64) -> bool {
    let has = |capability: u32| capabilities >> capability & 1 == 1;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_cpu_model_on_several_architectures() {
        let x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!(cpu_model(x86), "AMD EPYC");
        let arm = "processor\t: 0\nCPU part\t: 0xd0c\n\nHardware\t: BCM2711\nModel\t\t: Pi 4\n";
        assert_eq!(cpu_model(arm), "Pi 4");
        assert_eq!(cpu_model(""), "");
    }

    #[test]
    fn detects_the_initial_user_namespace() {
        assert!(in_initial_user_namespace("         0          0 4294967295"));
        assert!(!in_initial_user_namespace("         0       1000          1"));
        assert!(!in_initial_user_namespace(""));
    }

    #[test]
    fn tracing_needs_bpf_and_perfmon_or_sys_admin() {
        let status = |mask: &str| format!("Name:\tx\nCapPrm:\tffff\nCapEff:\t{mask}\n");
        let may = |mask: &str| may_trace(effective_capabilities(&status(mask)));
        assert!(may("000001fffeffffff"));
        assert!(may("0000000000200000"));
        assert!(may("000000c000000000"));
        assert!(!may("0000008000000000"));
        assert!(!may("0000000000000000"));
        assert!(!may_trace(effective_capabilities("")));
    }

    #[test]
    fn sysctls_are_sorted_and_unique() {
        assert!(SYSCTLS.is_sorted());
        assert!(SYSCTLS.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn describes_this_machine() {
        let mut info = NodeInfo::default();
        describe(&mut info);
        assert!(!info.kernel.is_empty() && !info.machine.is_empty());
        assert!(info.cpus > 0 && info.netns_inode > 0);
        assert_eq!(info.can_ebpf, info.notes.iter().all(|note| !note.contains("eBPF")));
        for (name, value) in &info.sysctls {
            assert!(!value.contains(['\t', '\n']), "{name} = {value:?}");
        }
    }
}
