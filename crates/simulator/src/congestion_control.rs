//! The congestion controls: the C cores of `kmod/core` and models of the kernel's own (`kmod/sim`), compiled by the build script. A call
//! takes the state of the socket and returns the decision; the caller applies it.
#![expect(unsafe_code, reason = "the cores are in C")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null;

/// Bits of [`Ack::flags`].
pub mod ack_flags {
    /// `tcp_is_cwnd_limited()`: in slow start, half of the window in use is enough.
    pub const CWND_LIMITED: u32 = 1;
    /// The application had nothing to send when the rate sample was taken. For events: `tp->app_limited`.
    pub const APP_LIMITED: u32 = 2;
    /// ECN feedback was negotiated.
    pub const ECN: u32 = 4;
    /// `tp->is_cwnd_limited` alone: the window was full.
    pub const CWND_FULL: u32 = 8;
    /// The RTT sample may contain a delayed-ACK timer.
    pub const ACK_DELAYED: u32 = 16;
    /// All bits.
    pub const ALL: u32 = 31;
}

/// `struct cc_ack`: the state of a connection, and what an ACK changed. Counts are packets of one MSS.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ack {
    /// CLOCK_MONOTONIC, µs (`tcp_mstamp`).
    pub now_us: u64,
    /// Current pacing rate, bytes per second.
    pub pacing_bytes_per_sec: u64,
    /// RTT sample of the newest packet that this ACK acknowledges; 0 if none.
    pub rtt_us: u32,
    /// Smoothed RTT.
    pub srtt_us: u32,
    /// `tp->mdev_us`, times 4.
    pub mdev_us: u32,
    /// Windowed minimum; 0 or `u32::MAX` if unknown.
    pub rtt_min_us: u32,
    /// Packets newly delivered.
    pub acked_pkts: u32,
    /// Packets newly marked lost.
    pub lost_pkts: u32,
    /// Packets in flight after the ACK.
    pub inflight_pkts: u32,
    /// Packets in flight before the ACK.
    pub prior_inflight_pkts: u32,
    /// Congestion window.
    pub cwnd_pkts: u32,
    /// Slow start threshold.
    pub ssthresh_pkts: u32,
    /// Maximum congestion window.
    pub cwnd_clamp_pkts: u32,
    /// Congestion window before the last reduction.
    pub prior_cwnd_pkts: u32,
    /// First unacknowledged byte, after the ACK.
    pub una_seq: u32,
    /// Next byte to be sent.
    pub nxt_seq: u32,
    /// Packets delivered so far; wraps.
    pub delivered_pkts: u32,
    /// Packets delivered with CE so far; wraps.
    pub delivered_ce_pkts: u32,
    /// Packets marked lost so far; wraps.
    pub total_lost_pkts: u32,
    /// [`Ack::delivered_pkts`] when the acknowledged packet was sent.
    pub rate_prior_delivered_pkts: u32,
    /// Packets delivered within [`Ack::rate_interval_us`]; 0 if there is no rate sample.
    pub rate_delivered_pkts: u32,
    /// How many of these had CE.
    pub rate_delivered_ce_pkts: u32,
    /// Interval of the rate sample.
    pub rate_interval_us: u32,
    /// Time until the earliest departure of the next packet.
    pub edt_delay_us: u32,
    /// Payload bytes of a packet.
    pub mss_bytes: u32,
    /// Bytes of payload and IP and TCP headers.
    pub mtu_bytes: u32,
    /// Uniform random number, new for every call.
    pub random: u32,
    /// A [`CaState`].
    pub ca_state: u32,
    /// Bits of [`ack_flags`].
    pub flags: u32,
}

/// `struct cc_out`: the decision of a congestion control.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CcOutput {
    /// Pacing rate, bytes per second; 0: unchanged.
    pub pacing_bytes_per_sec: u64,
    /// Congestion window.
    pub cwnd_pkts: u32,
    /// Slow start threshold.
    pub ssthresh_pkts: u32,
    /// Bit 0: a round ended. Bit 1: a state of the core began.
    pub flags: u32,
}

/// `CC_OUT_ROUND`.
const OUT_ROUND: u32 = 1;
/// `CC_OUT_STATE`.
const OUT_STATE: u32 = 2;

impl CcOutput {
    /// Returns whether a round ended, so that [`CongestionControl::read`] has new values.
    pub fn ends_round(&self) -> bool {
        self.flags & OUT_ROUND != 0
    }

    /// Returns whether a state of the core began, possibly before the end of the round. [`CongestionControl::read`] then has new values,
    /// too.
    pub fn begins_state(&self) -> bool {
        self.flags & OUT_STATE != 0
    }
}

/// The kernel's `enum tcp_ca_state`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open,
    /// Duplicate ACKs or SACKs.
    Disorder,
    /// The window shrinks because of ECN or a full local queue.
    Cwr,
    /// Fast retransmission.
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// An event for [`CongestionControl::on_event`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The socket enters [`CaState::Open`]. Here and in the next four, [`Ack::ca_state`] is still the old state.
    Open,
    /// The socket enters [`CaState::Disorder`].
    Disorder,
    /// The socket enters [`CaState::Cwr`].
    Cwr,
    /// The socket enters [`CaState::Recovery`].
    Recovery,
    /// The socket enters [`CaState::Loss`].
    Loss,
    /// Transmission resumes after more than an RTO of idle time.
    Restart,
    /// First transmission with nothing in flight.
    TxStart,
    /// The retransmission timeout expired; [`CongestionControl::on_loss`] has just been called.
    Rto,
}

impl From<CaState> for Event {
    fn from(state: CaState) -> Self {
        match state {
            CaState::Open => Self::Open,
            CaState::Disorder => Self::Disorder,
            CaState::Cwr => Self::Cwr,
            CaState::Recovery => Self::Recovery,
            CaState::Loss => Self::Loss,
        }
    }
}

/// What a congestion control requires from the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CcRequirements {
    /// The core sets the window at every ACK (`cong_control`), so the stack uses neither PRR nor its own pacing rate.
    pub owns_cwnd: bool,
    /// ECN feedback with one echo per mark.
    pub ecn: bool,
    /// ECT(1) on data packets.
    pub ect1: bool,
    /// Pacing.
    pub pacing: bool,
    /// The core sets [`CongestionControl::bursts`].
    pub bursts: bool,
}

/// Sizes of TSO bursts.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bursts {
    /// Minimum number of segments.
    pub min_tso_segs: u32,
    /// A burst lasts 2^-n s at the pacing rate.
    pub pacing_shift: u32,
}

/// A state variable of a congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub name: &'static str,
    /// "us", "pkts", "1/256" ...
    pub unit: &'static str,
    /// Its value.
    pub value: u32,
}

/// An invariant that a call violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The core.
    pub core: &'static str,
    /// The condition that does not hold.
    pub invariant: &'static str,
    /// The value that violates it.
    pub value: u64,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.core, self.invariant, self.value)
    }
}

/// Why a congestion control cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// No core and no scheme has this name.
    #[error("the simulator has no congestion control `{}`", name.escape_debug())]
    Algorithm {
        /// The name.
        name: String,
    },
    /// The core has no such parameter.
    #[error("`{core}` has no parameter `{}` (it has {known})", name.escape_debug())]
    Parameter {
        /// The core.
        core: &'static str,
        /// The parameter.
        name: String,
        /// The parameters that it has.
        known: String,
    },
    /// A value is out of range.
    #[error("`{core}`: {name} = {value} is out of range; allowed: {min} to {max} ({unit})")]
    Range {
        /// The core.
        core: &'static str,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
        /// Lowest value.
        min: u32,
        /// Highest value.
        max: u32,
        /// Unit.
        unit: &'static str,
    },
    /// A value contradicts that of another parameter.
    #[error("`{core}`: {name} = {value}: {message}")]
    Rule {
        /// The core.
        core: &'static str,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The rule.
        message: &'static str,
    },
}

/// The C struct `cc_fault`.
#[repr(C)]
#[derive(Debug)]
struct Fault {
    name: *const c_char,
    unit: *const c_char,
    message: *const c_char,
    value: u32,
    min: u32,
    max: u32,
}

/// `struct cc_conn`. Exists only in memory that [`CongestionControl`] owns.
#[repr(C)]
struct Conn {
    _opaque: [u8; 0],
}

/// Index of the size of `struct cc_conn` in `cc_ffi_size`.
const SIZE_OF_CONN: u32 = 0;
/// `CC_PARAMS_MAX`, which also limits the number of stats.
const STATS_MAX: usize = 32;

const OWNS_CWND: u32 = 1;
const WANTS_ECN: u32 = 2;
const WANTS_ECT1: u32 = 4;
const WANTS_PACING: u32 = 8;
const WANTS_BURSTS: u32 = 16;

unsafe extern "C" {
    safe fn cc_ffi_size(which: u32) -> usize;
    safe fn cc_random(seed: &mut u64) -> u32;
    fn cc_ffi_start(conn: *mut Conn, scheme: *const c_char) -> c_int;
    fn cc_ffi_set(conn: *mut Conn, name: *const c_char, value: u32) -> c_int;
    fn cc_ffi_check(conn: *const Conn, fault: &mut Fault) -> c_int;
    fn cc_ffi_name(conn: *const Conn) -> *const c_char;
    fn cc_ffi_param_name(conn: *const Conn, i: u32) -> *const c_char;
    fn cc_ffi_stat_name(conn: *const Conn, i: u32) -> *const c_char;
    fn cc_ffi_stat_unit(conn: *const Conn, i: u32) -> *const c_char;
    fn cc_ffi_violation(conn: *const Conn, value: &mut u64) -> *const c_char;
    fn cc_conn_wants(conn: *const Conn) -> u32;
    fn cc_conn_bursts(conn: *const Conn, pacing_bytes_per_sec: u64, mtu_bytes: u32) -> Bursts;
    fn cc_call_init(conn: *mut Conn, ack: &Ack, out: &mut CcOutput);
    fn cc_call_sample(conn: *mut Conn, ack: &Ack) -> u32;
    fn cc_call_ack(conn: *mut Conn, ack: &Ack, out: &mut CcOutput);
    fn cc_call_loss(conn: *mut Conn, ack: &Ack) -> u32;
    fn cc_call_event(conn: *mut Conn, event: u32, ack: &Ack, out: &mut CcOutput);
    fn cc_call_undo(conn: *mut Conn, ack: &Ack) -> u32;
    fn cc_call_read(conn: *const Conn, ack: &Ack, stats: *mut u32);
}

/// Returns a random number, uniform over 32 bits (xorshift64*). The seed is never 0.
pub fn random(seed: &mut u64) -> u32 {
    cc_random(seed)
}

/// Returns a constant string of the C program; empty for null.
///
/// # Safety
/// `text` is null or points to a string that lives as long as the program.
unsafe fn constant(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// The congestion control of one connection. Once [`CongestionControl::violation`] returns something, the results of calls are meaningless.
#[derive(Clone)]
pub struct CongestionControl {
    /// A `struct cc_conn` that `cc_ffi_start` initialised. It points only to constants.
    conn: Box<[u64]>,
}

impl std::fmt::Debug for CongestionControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CongestionControl").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl CongestionControl {
    /// Creates the congestion control. `algorithm` is a core or a scheme: "cubic", "bbr", "ta_grad". Parameters that are not given have the
    /// scheme's values.
    ///
    /// # Errors
    /// There is no such algorithm, or it does not take the parameters.
    pub fn new(algorithm: &str, params: &BTreeMap<String, u32>) -> Result<Self, CoreError> {
        let unknown = || CoreError::Algorithm { name: algorithm.to_owned() };
        let words = cc_ffi_size(SIZE_OF_CONN).div_ceil(size_of::<u64>());
        let mut connection = Self { conn: vec![0; words].into_boxed_slice() };
        let scheme = CString::new(algorithm).map_err(|_| unknown())?;
        // SAFETY: the memory has the size and alignment of a struct cc_conn, and the text ends with a zero.
        if unsafe { cc_ffi_start(connection.as_mut_ptr(), scheme.as_ptr()) } != 0 {
            return Err(unknown());
        }
        for (name, value) in params {
            connection.set(name, *value)?;
        }
        connection.check()?;
        Ok(connection)
    }

    fn set(&mut self, name: &str, value: u32) -> Result<(), CoreError> {
        let found = CString::new(name).is_ok_and(|text| {
            // SAFETY: an initialised connection, and a text that ends with a zero.
            unsafe { cc_ffi_set(self.as_mut_ptr(), text.as_ptr(), value) == 0 }
        });
        if found {
            return Ok(());
        }
        let known = self.param_names().join(", ");
        Err(CoreError::Parameter { core: self.name(), name: name.to_owned(), known })
    }

    fn check(&self) -> Result<(), CoreError> {
        let mut fault =
            Fault { name: null(), unit: null(), message: null(), value: 0, min: 0, max: 0 };
        // SAFETY: an initialised connection.
        if unsafe { cc_ffi_check(self.as_ptr(), &mut fault) } == 0 {
            return Ok(());
        }
        let core = self.name();
        // SAFETY: the strings of a fault are constants.
        let (name, unit) = unsafe { (constant(fault.name), constant(fault.unit)) };
        let Fault { value, min, max, .. } = fault;
        if fault.message.is_null() {
            return Err(CoreError::Range { core, name, value, min, max, unit });
        }
        // SAFETY: as above.
        Err(CoreError::Rule { core, name, value, message: unsafe { constant(fault.message) } })
    }

    fn param_names(&self) -> Vec<&'static str> {
        // SAFETY: an initialised connection; names are constants, and null beyond the last.
        let name = |i| unsafe { constant(cc_ffi_param_name(self.as_ptr(), i)) };
        (0..).map(name).take_while(|name| !name.is_empty()).collect()
    }

    fn as_mut_ptr(&mut self) -> *mut Conn {
        self.conn.as_mut_ptr().cast()
    }

    fn as_ptr(&self) -> *const Conn {
        self.conn.as_ptr().cast()
    }

    /// Returns the core's name: "ta" for the scheme "ta_grad".
    pub fn name(&self) -> &'static str {
        // SAFETY: an initialised connection; its core's name is a constant.
        unsafe { constant(cc_ffi_name(self.as_ptr())) }
    }

    /// Returns what the core requires from the stack.
    pub fn requirements(&self) -> CcRequirements {
        // SAFETY: an initialised connection.
        let bits = unsafe { cc_conn_wants(self.as_ptr()) };
        CcRequirements {
            owns_cwnd: bits & OWNS_CWND != 0,
            ecn: bits & WANTS_ECN != 0,
            ect1: bits & WANTS_ECT1 != 0,
            pacing: bits & WANTS_PACING != 0,
            bursts: bits & WANTS_BURSTS != 0,
        }
    }

    /// Returns the sizes of TSO bursts: the stack's defaults if the core sets none.
    pub fn bursts(&self, pacing_bytes_per_sec: u64, mtu_bytes: u32) -> Bursts {
        // SAFETY: an initialised connection.
        unsafe { cc_conn_bursts(self.as_ptr(), pacing_bytes_per_sec, mtu_bytes) }
    }

    /// Begins the connection. Must precede all other calls.
    pub fn init(&mut self, ack: &Ack) -> CcOutput {
        let mut out = CcOutput::default();
        // SAFETY: an initialised connection.
        unsafe { cc_call_init(self.as_mut_ptr(), ack, &mut out) };
        out
    }

    /// Passes an ACK of data, in any state (`pkts_acked`). Returns whether a round ended.
    pub fn on_sample(&mut self, ack: &Ack) -> bool {
        // SAFETY: an initialised connection.
        let flags = unsafe { cc_call_sample(self.as_mut_ptr(), ack) };
        flags & OUT_ROUND != 0
    }

    /// Passes an ACK to `cong_avoid`, or to `cong_control` if the core owns the window.
    pub fn on_ack(&mut self, ack: &Ack) -> CcOutput {
        let mut out = CcOutput::default();
        // SAFETY: an initialised connection.
        unsafe { cc_call_ack(self.as_mut_ptr(), ack, &mut out) };
        out
    }

    /// Requests the window reduction after a loss or mark. Returns ssthresh in packets.
    pub fn on_loss(&mut self, ack: &Ack) -> u32 {
        // SAFETY: an initialised connection.
        unsafe { cc_call_loss(self.as_mut_ptr(), ack) }
    }

    /// Passes a change of state or another event.
    pub fn on_event(&mut self, event: Event, ack: &Ack) -> CcOutput {
        let mut out = CcOutput::default();
        // SAFETY: an initialised connection.
        unsafe { cc_call_event(self.as_mut_ptr(), event as u32, ack, &mut out) };
        out
    }

    /// Undoes an unnecessary reduction. Returns cwnd in packets.
    pub fn undo(&mut self, ack: &Ack) -> u32 {
        // SAFETY: an initialised connection.
        unsafe { cc_call_undo(self.as_mut_ptr(), ack) }
    }

    /// Returns the state variables.
    pub fn read(&self, ack: &Ack) -> Vec<Stat> {
        let mut values = [0; STATS_MAX];
        // SAFETY: an initialised connection; no core has more than STATS_MAX stats.
        unsafe { cc_call_read(self.as_ptr(), ack, values.as_mut_ptr()) };
        let stat = |(i, value)| {
            // SAFETY: as above; both are constants, and null beyond the last.
            let (name, unit) = unsafe {
                let conn = self.as_ptr();
                (constant(cc_ffi_stat_name(conn, i)), constant(cc_ffi_stat_unit(conn, i)))
            };
            Stat { name, unit, value }
        };
        (0..).zip(values).map(stat).take_while(|stat| !stat.name.is_empty()).collect()
    }

    /// Returns the first invariant that a call violated.
    pub fn violation(&self) -> Option<Violation> {
        let mut value = 0;
        // SAFETY: an initialised connection; the text is null or a constant.
        let invariant = unsafe { constant(cc_ffi_violation(self.as_ptr(), &mut value)) };
        (!invariant.is_empty()).then(|| Violation { core: self.name(), invariant, value })
    }
}

#[cfg(test)]
mod tests;
