//! Measures the CPU time of one dump of all sockets, by each kind of request, and by eBPF for comparison.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::Iter;
use aya::{Btf, Ebpf};
use ccbench_collector::{DiagSampler, Sampler as _};
use ccbench_proto::plan::Acks;
use ccbench_proto::units::Micros;

use crate::kernel::{self, Stats};
use crate::{PORT, clang, median, namespace, now_ns, open, own_cpu_ns, ports};

const REPETITIONS: usize = 3;
const DIAG_PASSES: u64 = 300;
const ITERATOR_PASSES: u64 = 200;
const SS_PASSES: u64 = 20;
const SS_ARGUMENTS: &str = "-tinH";

pub fn print() {
    println!(
        "## One look at all sockets: CPU time in us (medians of {REPETITIONS}), and what looking every 10 and 100 ms \
         takes of a CPU"
    );
    println!(
        "sockets  exec_ss  inet_diag  iterator  ss/diag  iter/diag  ss@10/100ms        diag@10/100ms      iter@10/100ms"
    );
    for small_table in [false, true] {
        let whose = if small_table { "its own of 1024" } else { "the machine's" };
        println!("namespaces whose table of sockets is {whose}:");
        for sockets in [10, 100, 1000] {
            thread::spawn(move || looks(sockets, small_table)).join().unwrap();
        }
    }
    println!(
        "\n## eBPF beside them: sockets that each get 100 segments in a second; kernel and reader, share of a CPU \
         (medians of {REPETITIONS})"
    );
    println!("sockets  acks@10ms  acks@100ms");
    for sockets in [10, 100, 1000] {
        let share = |ms| median((0..REPETITIONS).map(|_| in_thread(move || watched(sockets, ms))));
        println!("{sockets:>7}  {:>7.2} %  {:>8.2} %", share(10), share(100));
    }
}

fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(work).join().unwrap()
}

fn connections(sockets: u16) -> Vec<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
    let connect = |_| {
        let client = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        (client, listener.accept().unwrap().0)
    };
    (0..sockets / 2).map(connect).collect()
}

/// Returns the microseconds of this thread and of programs that it runs, per pass.
fn cost_us(passes: u64, mut pass: impl FnMut(u64)) -> f64 {
    let spent = || own_cpu_ns() + kernel::childrens_cpu_ns();
    let begin_ns = spent();
    (0..passes).for_each(&mut pass);
    (spent() - begin_ns) as f64 / passes as f64 / 1e3
}

fn looks(sockets: u16, small_table: bool) {
    if small_table {
        // A new namespace inherits this setting from the current one.
        namespace(false);
        std::fs::write("/proc/sys/net/ipv4/tcp_child_ehash_entries", "1024")
            .expect("Linux 6.1 or newer");
    }
    namespace(false);
    let pairs = connections(sockets);
    let mut sampler = DiagSampler::new();
    sampler.start(&ports(65_535), 1).unwrap();
    let mut iterator = Sockets::load();
    let (mut rows, mut bytes) = (Vec::new(), Vec::new());
    let mut diag = |pass| {
        rows.clear();
        sampler.drain(pass + 1, &mut rows).unwrap();
        assert_eq!(rows.len(), usize::from(sockets));
    };
    let mut iterate = |_| {
        bytes.clear();
        assert!(iterator.look(&mut bytes) >= usize::from(sockets));
    };
    let ss = |_| {
        let status = Command::new("ss").arg(SS_ARGUMENTS).stdout(Stdio::null()).status();
        assert!(status.expect("iproute2 is installed").success());
    };
    let [mut of_ss, mut of_diag, mut of_iterator] = [const { Vec::new() }; 3];
    for _ in 0..REPETITIONS {
        of_ss.push(cost_us(SS_PASSES, ss));
        of_diag.push(cost_us(DIAG_PASSES, &mut diag));
        of_iterator.push(cost_us(ITERATOR_PASSES, &mut iterate));
    }
    let [ss, diag, iterator] = [of_ss, of_diag, of_iterator].map(median);
    let shares = |us: f64| format!("{:>6.2} % / {:>5.2} %", us / 100.0, us / 1000.0);
    println!(
        "{sockets:>7}  {ss:>7.0}  {diag:>9.0}  {iterator:>8.0}  {:>7.1}  {:>9.2}  {}  {}  {}",
        ss / diag,
        iterator / diag,
        shares(ss),
        shares(diag),
        shares(iterator),
    );
    drop(pairs);
}

/// `sockets.bpf.c`.
struct Sockets(Ebpf);

impl Sockets {
    const ROW_BYTES: usize = 144;

    fn load() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("sockets.bpf.o");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ack_cost/sockets.bpf.c");
        clang::compile(&clang::clang().unwrap(), source.as_ref(), &object).unwrap();
        let mut programs = Ebpf::load_file(object).unwrap();
        program(&mut programs).load("tcp", &Btf::from_sys_fs().unwrap()).unwrap();
        Self(programs)
    }

    /// Appends a row per socket. Returns how many.
    fn look(&mut self, into: &mut Vec<u8>) -> usize {
        let program = program(&mut self.0);
        let link = program.attach().unwrap();
        let mut file = program.take_link(link).unwrap().into_file().unwrap();
        file.read_to_end(into).unwrap() / Self::ROW_BYTES
    }
}

fn program(programs: &mut Ebpf) -> &mut Iter {
    programs.program_mut("sockets").unwrap().try_into().unwrap()
}

/// Returns the share of a CPU in percent. Every socket has 100 segments per second: 50 messages and their replies.
fn watched(sockets: u16, ms: u64) -> f64 {
    namespace(false);
    let stats = Stats::on();
    let mut pairs = connections(sockets);
    let mut source = open(Acks::AtMost(Micros::from_millis(ms)), &ports(65_535));
    let (mut user_ns, mut next, begin) = (0, Instant::now(), Instant::now());
    while begin.elapsed() < Duration::from_secs(2) {
        for (client, server) in &mut pairs {
            client.write_all(&[1; 100]).unwrap();
            server.read_exact(&mut [0; 100]).unwrap();
            server.write_all(&[1; 100]).unwrap();
            client.read_exact(&mut [0; 100]).unwrap();
        }
        let from = own_cpu_ns();
        source.drain(now_ns(), false, &mut Vec::new());
        user_ns += own_cpu_ns() - from;
        next += Duration::from_millis(20);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let (_, kernel_ns) = stats.runs();
    (kernel_ns as f64 + user_ns as f64) / begin.elapsed().as_nanos() as f64 * 100.0
}
