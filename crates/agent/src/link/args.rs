//! The command line of `ccbench link`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use ccbench_proto::plan::{
    AckAggregation, Backend, BurstLoss, EcnRewrite, Jitter, OnEnd, Policer, Queue, Slot, Tbf,
};
use ccbench_proto::units::{Bytes, Limit, Micros, Ppm, Rate, UnitError};

use super::text::{self, TableError};

/// The name of the direction from left to right, and of its link.
pub(crate) const DOWN: &str = "down";
/// The name of the direction from right to left, and of its link.
pub(crate) const UP: &str = "up";

/// The text of `ccbench link --help`.
pub(crate) const ABOUT: &str = "A stand-alone emulated link: rate, delay, queue, loss, traces.\n\n\
Three forms:\n  \
ccbench link --left A --right B [OPTIONS]   joins two interfaces of this network namespace at layer 2, in \
both directions, until it is interrupted\n  \
ccbench link --dev X [OPTIONS]              shapes what leaves one interface (of a routing node) until it is \
interrupted\n  \
ccbench link [OPTIONS] -- COMMAND           runs a command behind such a link in a network namespace of its \
own, and exits with its exit code\n\n\
Both directions are the same unless an --up-… flag differs. Down is from left to right, and towards the \
COMMAND; up is from right to left, and away from the COMMAND. `--up-rate none` leaves the up \
direction unshaped, `--up-loss 0%` without loss.";

const EXAMPLES: &str = "Units are those of plans: 100mbit, 10ms, 187500B, 40p, 0.1%.\n\n\
Examples:\n  \
ccbench link --left eth1 --right eth2 --rate 100mbit --delay 10ms --queue 187500B\n  \
ccbench link --rate 12mbit --delay 20ms --aqm fq_codel,target=5ms,ecn -- iperf3 -c $SERVER\n  \
ccbench link --trace Verizon-LTE-short.down --up-trace Verizon-LTE-short.up -- sh -c 'iperf3 -R -c \
$CCBENCH_LINK_HOST'\n  \
ccbench link --dev eth0 --rate 20mbit --queue 1.5bdp --delay 10ms --stats-json stats.ndjson\n\n\
The COMMAND finds the other end's address in CCBENCH_LINK_HOST (and MAHIMAHI_BASE, that of the outermost \
shell). All addresses of this machine can be reached from it; what lies beyond only if this machine forwards \
and translates addresses already, because its firewall is left alone. Shells may be nested.\n\
Exit codes: the COMMAND's (128 + signal if it was killed); 0 after an interrupt or --for; 1 the link could not be \
made or failed; 2 the command line is wrong; 126, 127 the COMMAND could not be started.";

/// `ccbench link`
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One of the two interfaces to join
    #[arg(long, value_name = "IFACE", requires = "right", help_heading = "Where")]
    pub left: Option<String>,
    /// The other one
    #[arg(long, value_name = "IFACE", requires = "left", help_heading = "Where")]
    pub right: Option<String>,
    /// The interface whose egress is shaped
    #[arg(long, value_name = "IFACE", conflicts_with_all = ["left", "right"], help_heading = "Where")]
    pub dev: Option<String>,
    /// With --dev: `kernel` (qdiscs), `userspace`, or `auto`: the kernel if it supports all options
    #[arg(long, value_name = "BACKEND", value_parser = text::word::<Backend>, requires = "dev", help_heading = "Where")]
    pub backend: Option<Backend>,
    /// Also use an interface on the route to the client of the SSH session that this command is started in
    #[arg(long, help_heading = "Where")]
    pub allow_control_interface: bool,
    /// The link
    #[command(flatten)]
    pub down: Down,
    /// Overrides of the up direction
    #[command(flatten)]
    pub up: Up,
    /// When traces begin: `now`, `first-packet`, or `@SECONDS` since 1970 (CLOCK_REALTIME), for several machines at once
    #[arg(long, value_name = "WHEN", default_value = "now", help_heading = "Both directions")]
    pub start: Start,
    /// Bytes beside each IP packet that count against the rate: 14B is an Ethernet header, as the kernel's qdiscs count; 0B none; 38B a whole frame with preamble, checksum and gap
    #[arg(long, value_name = "SIZE", default_value = "14B", help_heading = "Both directions")]
    pub overhead: Bytes,
    /// Seed of all random processes
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = seed, allow_hyphen_values = true, help_heading = "Both directions")]
    pub seed: u64,
    /// Keep the CPUs from halting, for precise timers on virtual machines: one idle-priority thread each
    #[arg(long, help_heading = "Both directions")]
    pub keep_awake: bool,
    /// Write each packet separately, even if several of a flow are due together (userspace)
    #[arg(long, help_heading = "Both directions")]
    pub no_gso: bool,
    /// Write one JSON object per interval and direction to FILE (`-`: standard output), and the totals at the end
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub stats_json: Option<PathBuf>,
    /// Time between two reports
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = "Output")]
    pub interval: Micros,
    /// Write one line of CSV per packet to FILE
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub packet_log: Option<PathBuf>,
    /// Stop the packet log after this many bytes of rows
    #[arg(long, value_name = "SIZE", default_value = "1GB", help_heading = "Output")]
    pub packet_log_limit: Bytes,
    /// No live statistics and no totals on standard error
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
    /// Stop after this time, and kill the COMMAND
    #[arg(long = "for", value_name = "TIME", help_heading = "Output")]
    pub length: Option<Micros>,
    /// With a COMMAND: also run this (by `sh -c`) at the other end of the link, in front of it, and end it with the COMMAND
    #[arg(long, value_name = "COMMAND", help_heading = "With a command")]
    pub outside: Option<String>,
    /// With a COMMAND: use a user namespace even as root
    #[arg(long, help_heading = "With a command")]
    pub rootless: bool,
    /// The command to run behind the link, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn aqm_help() -> String {
    let kinds = Queue::kinds().join(", ");
    format!("Queue: {kinds}, with the plan's keys (fq_codel,target=5ms,ecn); cake only with --dev")
}

macro_rules! direction {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $heading:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, clap::Args)]
        #[command(next_help_heading = $heading)]
        #[group(id = concat!($prefix, "direction"), multiple = true)]
        pub struct $name {
            /// Its rate
            #[arg(id = concat!($prefix, "rate"), long = concat!($prefix, "rate"), value_name = "RATE",
                allow_hyphen_values = true,
                help = "Rate (100mbit); `none` or 0mbit: unshaped")]
            pub rate: Option<RateOrNone>,
            /// Its delay
            #[arg(id = concat!($prefix, "delay"), long = concat!($prefix, "delay"), value_name = "TIME",
                allow_hyphen_values = true,
                help = "One-way delay (10ms)")]
            pub delay: Option<Micros>,
            /// Its queue's limit
            #[arg(id = concat!($prefix, "queue"), long = concat!($prefix, "queue"), value_name = "LIMIT",
                help = "Queue limit: 187500B, 40p, 15ms or 1.5bdp of the two delays (with --dev, of the one) [default: 1.5bdp of bytes; 1000p with a trace or without a delay; the AQM's own with --aqm]")]
            pub queue: Option<Limit>,
            /// Its queue
            #[arg(id = concat!($prefix, "aqm"), long = concat!($prefix, "aqm"), value_name = "KIND[,KEY=VALUE…]",
                help = aqm_help())]
            pub aqm: Option<String>,
            /// Its trace
            #[arg(id = concat!($prefix, "trace"), long = concat!($prefix, "trace"), value_name = "FILE",
                help = "Capacity trace, in place of the rate: mahimahi, CSV, JSON … (`ccbench trace info FILE`)")]
            pub trace: Option<PathBuf>,
            /// What follows its trace
            #[arg(id = concat!($prefix, "on-end"), long = concat!($prefix, "on-end"), value_name = "WHAT",
                value_parser = text::word::<OnEnd>,
                help = "What follows the trace's last row: hold, loop or stop [default: loop for mahimahi's traces, as mm-link does, else hold]")]
            pub on_end: Option<OnEnd>,
            /// Least rate of its trace
            #[arg(id = concat!($prefix, "floor"), long = concat!($prefix, "floor"), value_name = "RATE",
                help = "Minimum rate: lower rates of the trace are raised to it")]
            pub floor: Option<Rate>,
            /// Independent loss
            #[arg(id = concat!($prefix, "loss"), long = concat!($prefix, "loss"), value_name = "SHARE",
                help = "Independent random loss (0.1%)")]
            pub loss: Option<Ppm>,
            /// Loss in bursts
            #[arg(id = concat!($prefix, "burst-loss"), long = concat!($prefix, "burst-loss"),
                value_name = "ENTER,leave=SHARE[,…]", value_parser = burst_loss,
                help = "Gilbert-Elliott loss: 1%,leave=20%[,bad=100%][,good=0%]")]
            pub burst_loss: Option<BurstLoss>,
            /// Random delay
            #[arg(id = concat!($prefix, "jitter"), long = concat!($prefix, "jitter"),
                value_name = "TIME[,…]", value_parser = jitter,
                help = "Random delay around the constant one: 2ms[,distribution=normal|uniform|pareto][,correlation=25%][,reorder][,hold=10ms]")]
            pub jitter: Option<Jitter>,
            /// Delivered twice
            #[arg(id = concat!($prefix, "duplicate"), long = concat!($prefix, "duplicate"), value_name = "SHARE",
                help = "Share of packets that are delivered twice")]
            pub duplicate: Option<Ppm>,
            /// Overtaking
            #[arg(id = concat!($prefix, "reorder"), long = concat!($prefix, "reorder"), value_name = "SHARE",
                help = "Share of packets that are sent on without the delay")]
            pub reorder: Option<Ppm>,
            /// Damaged
            #[arg(id = concat!($prefix, "corrupt"), long = concat!($prefix, "corrupt"), value_name = "SHARE",
                help = "Share of packets in which one bit is flipped")]
            pub corrupt: Option<Ppm>,
            /// Another ECN field
            #[arg(id = concat!($prefix, "ecn-rewrite"), long = concat!($prefix, "ecn-rewrite"),
                value_name = "FIELD=FIELD[,…]", value_parser = ecn_rewrite,
                help = "New ECN fields of arriving packets: ect1=ect0[,ect0=not-ect][,ce=not-ect][,share=50%]")]
            pub ecn_rewrite: Option<EcnRewrite>,
            /// Drops above a rate
            #[arg(id = concat!($prefix, "policer"), long = concat!($prefix, "policer"),
                value_name = "RATE,burst=SIZE", value_parser = policer,
                help = "Drop arriving packets above a rate: 10mbit,burst=100kB")]
            pub policer: Option<Policer>,
            /// Superseded acknowledgements
            #[arg(id = concat!($prefix, "ack-filter"), long = concat!($prefix, "ack-filter"), value_name = "BOOL",
                num_args = 0..=1, require_equals = true, default_missing_value = "true",
                help = "Drop acknowledgements that a newer one supersedes while they wait")]
            pub ack_filter: Option<bool>,
            /// Held acknowledgements
            #[arg(id = concat!($prefix, "ack-aggregation"), long = concat!($prefix, "ack-aggregation"),
                value_name = "TIME[,…]", value_parser = ack_aggregation,
                help = "Hold acknowledgements back and release them together: 2ms[,packets=32p]")]
            pub ack_aggregation: Option<AckAggregation>,
            /// Bursts
            #[arg(id = concat!($prefix, "slot"), long = concat!($prefix, "slot"),
                value_name = "TIME[,…]", value_parser = slot,
                help = "Transmit in bursts: 5ms[,max=10ms][,packets=32p][,bytes=60kB]")]
            pub slot: Option<Slot>,
            /// Token bucket
            #[arg(id = concat!($prefix, "tbf"), long = concat!($prefix, "tbf"),
                value_name = "SIZE[,…]", value_parser = tbf,
                help = "Burst and peak rate of the shaper: 100kB[,peakrate=200mbit][,mtu=1514B]")]
            pub tbf: Option<Tbf>,
        }
    };
}

direction!(
    /// The link from left to right; the default of both directions.
    Down, "", "The link (down, and up unless overridden)"
);
direction!(
    /// Overrides of the up direction.
    Up, "up-", "The up direction, where it differs"
);

impl From<Up> for Down {
    fn from(up: Up) -> Self {
        Self {
            rate: up.rate,
            delay: up.delay,
            queue: up.queue,
            aqm: up.aqm,
            trace: up.trace,
            on_end: up.on_end,
            floor: up.floor,
            loss: up.loss,
            burst_loss: up.burst_loss,
            jitter: up.jitter,
            duplicate: up.duplicate,
            reorder: up.reorder,
            corrupt: up.corrupt,
            ecn_rewrite: up.ecn_rewrite,
            policer: up.policer,
            ack_filter: up.ack_filter,
            ack_aggregation: up.ack_aggregation,
            slot: up.slot,
            tbf: up.tbf,
        }
    }
}

/// The error of a `--seed` that is not a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a whole number from 0 to {}", u64::MAX)]
pub struct SeedError;

fn seed(text: &str) -> Result<u64, SeedError> {
    text.parse().map_err(|_| SeedError)
}

fn burst_loss(text: &str) -> Result<BurstLoss, TableError> {
    text::table("enter", text)
}

fn jitter(text: &str) -> Result<Jitter, TableError> {
    text::table("spread", text)
}

fn ecn_rewrite(text: &str) -> Result<EcnRewrite, TableError> {
    text::table("ect1", text)
}

fn policer(text: &str) -> Result<Policer, TableError> {
    text::table("rate", text)
}

fn ack_aggregation(text: &str) -> Result<AckAggregation, TableError> {
    text::table("hold", text)
}

fn slot(text: &str) -> Result<Slot, TableError> {
    text::table("every", text)
}

fn tbf(text: &str) -> Result<Tbf, TableError> {
    text::table("burst", text)
}

/// A rate, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateOrNone {
    /// Unshaped.
    None,
    /// Shaped.
    Rate(Rate),
}

impl FromStr for RateOrNone {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "none" || text == "0" {
            return Ok(Self::None);
        }
        let rate: Rate = text.parse()?;
        Ok(if rate.bits_per_sec() == 0 { Self::None } else { Self::Rate(rate) })
    }
}

/// When traces begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// When the link starts.
    #[default]
    Now,
    /// When the first packet arrives.
    FirstPacket,
    /// At this time of `CLOCK_REALTIME`, in nanoseconds.
    At(u64),
}

/// The error of a `--start` that is not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write now, first-packet, or @SECONDS like @1800000000.5")]
pub struct StartError;

impl FromStr for Start {
    type Err = StartError;
    fn from_str(text: &str) -> Result<Self, StartError> {
        let seconds = |text: &str| {
            let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if !digits(whole) || !digits(part) || part.len() > 9 {
                return None;
            }
            let nanos = part.parse::<u64>().ok()? * 10_u64.pow(9 - part.len() as u32);
            whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos)
        };
        match text {
            "now" => Ok(Self::Now),
            "first-packet" => Ok(Self::FirstPacket),
            _ => text.strip_prefix('@').and_then(seconds).map(Self::At).ok_or(StartError),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_and_instants() {
        assert_eq!("none".parse(), Ok(RateOrNone::None));
        assert_eq!("0mbit".parse(), Ok(RateOrNone::None));
        assert_eq!("2mbit".parse(), Ok(RateOrNone::Rate(Rate::from_bits_per_sec(2_000_000))));
        assert!("2".parse::<RateOrNone>().is_err(), "no unit");
        assert_eq!("now".parse(), Ok(Start::Now));
        assert_eq!("@1.5".parse(), Ok(Start::At(1_500_000_000)));
        assert_eq!("@1".parse(), Ok(Start::At(1_000_000_000)));
        for bad in ["", "@", "@-1", "@1.", "@.5", "@1.0000000001", "then", "@99999999999999999999"]
        {
            assert!(bad.parse::<Start>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Start>();
            let _ = text.parse::<RateOrNone>();
        }
    }
}
