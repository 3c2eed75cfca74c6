//! Matches a second line of `ss` to the socket of a first line.

use std::collections::{BTreeMap, BTreeSet};

use super::{Endpoint, Info, Line, Socket};

/// A sample: a second line, and the socket that it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The number of the second line, from 1.
    pub line: u64,
    /// Its time, in nanoseconds since 1970: the first line's time stamp, otherwise the second's.
    pub at_ns: Option<u64>,
    /// Its socket; `None` if the first line is missing and several known sockets, or none, could be the owner.
    pub socket: Option<Socket>,
    /// The second line's fields.
    pub info: Box<Info>,
}

/// Takes lines in order and joins first and second lines.
#[derive(Debug, Default)]
pub struct Pairing {
    rows: Vec<Row>,
    /// First lines without a second one so far: line, time stamp, socket.
    waiting: Vec<(u64, Option<u64>, Socket)>,
    /// Last known counters of each socket, and its last description.
    known: BTreeMap<(Endpoint, Endpoint), Known>,
    /// First lines of established sockets that never got a second one.
    unpaired: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Known {
    socket: Socket,
    last: Box<Info>,
}

/// If more first lines than this wait, the oldest ones belong to sockets without a second line.
const MAX_WAITING: usize = 8;
/// With more sockets than this, lines are not matched by counters: it would take too long, and rarely match only one.
const MAX_COMPARED: usize = 4096;
/// The state whose sockets have a second line.
const ESTABLISHED: u32 = 1;

impl Pairing {
    /// Takes a line.
    pub fn take(&mut self, number: u64, at_ns: Option<u64>, line: Line) {
        match line {
            Line::Other => {}
            Line::Socket(socket, Some(info)) => self.put(number, at_ns, Some(socket), info),
            Line::Socket(socket, None) => {
                let same = |w: &Socket| (w.local, w.peer) == (socket.local, socket.peer);
                if let Some(at) = self.waiting.iter().position(|(_, _, w)| same(w)) {
                    self.leave(at);
                }
                self.waiting.push((number, at_ns, socket));
                if self.waiting.len() > MAX_WAITING {
                    self.leave(0);
                }
            }
            Line::Info(info) => {
                let whose = self.right_before(number, &info).or_else(|| self.only_one(&info));
                let key = whose.as_ref().map(|socket| (socket.local, socket.peer));
                let first =
                    self.waiting.iter().position(|(_, _, w)| Some((w.local, w.peer)) == key);
                let stamp = first.and_then(|at| self.waiting.remove(at).1);
                self.put(number, stamp.or(at_ns), whose, info);
            }
        }
    }

    /// Gives up on a first line without a second one.
    fn leave(&mut self, at: usize) {
        let (line, _, socket) = self.waiting.remove(at);
        if socket.state == ESTABLISHED {
            self.unpaired.push(line);
        }
    }

    /// The socket of the previous line, unless the counters rule it out.
    fn right_before(&self, number: u64, info: &Info) -> Option<Socket> {
        let (_, _, socket) = self.waiting.last().filter(|(at, _, _)| at + 1 >= number)?;
        let known = self.known.get(&(socket.local, socket.peer));
        known.is_none_or(|known| follows(&known.last, info)).then(|| socket.clone())
    }

    /// The only socket of the file whose counters this line can continue.
    fn only_one(&self, info: &Info) -> Option<Socket> {
        if self.known.len() > MAX_COMPARED {
            return None;
        }
        let mut fitting = self.known.values().filter(|known| follows(&known.last, info));
        let first = fitting.next()?;
        fitting.next().is_none().then(|| first.socket.clone())
    }

    fn put(&mut self, line: u64, at_ns: Option<u64>, socket: Option<Socket>, info: Box<Info>) {
        if let Some(socket) = &socket {
            let known = Known { socket: socket.clone(), last: info.clone() };
            self.known.insert((socket.local, socket.peer), known);
        }
        self.rows.push(Row { line, at_ns, socket, info });
    }

    /// Returns all rows, and the lines of sockets whose second line is missing. A row may precede the first complete sample of its
    /// socket, which then identifies it.
    pub fn finish(mut self) -> (Vec<Row>, Vec<u64>) {
        while !self.waiting.is_empty() {
            self.leave(0);
        }
        let (mut first, mut met): (Vec<Known>, _) = (vec![], BTreeSet::new());
        for row in &self.rows {
            let Some(socket) = &row.socket else { continue };
            if met.insert((socket.local, socket.peer)) {
                first.push(Known { socket: socket.clone(), last: row.info.clone() });
            }
            if first.len() > MAX_COMPARED {
                return (self.rows, self.unpaired);
            }
        }
        for row in self.rows.iter_mut().take_while(|row| row.socket.is_none()) {
            let mut fitting = first.iter().filter(|known| follows(&row.info, &known.last));
            let found = fitting.next();
            if fitting.next().is_none() {
                row.socket = found.map(|known| known.socket.clone());
            }
        }
        (self.rows, self.unpaired)
    }
}

/// Whether `next` can be a later sample of the same socket: it has the same congestion control and window scaling, no counter has
/// decreased, and at least one counter proves it.
fn follows(last: &Info, next: &Info) -> bool {
    let (a, b) = (&last.sample, &next.sample);
    let same = a.cc == b.cc && a.snd_wscale == b.snd_wscale && a.rcv_wscale == b.rcv_wscale;
    let counters = [
        (a.bytes_sent, b.bytes_sent),
        (a.bytes_acked, b.bytes_acked),
        (a.bytes_received, b.bytes_received),
        (a.data_segs_out_pkts.map(u64::from), b.data_segs_out_pkts.map(u64::from)),
        (a.segs_in_pkts.map(u64::from), b.segs_in_pkts.map(u64::from)),
    ];
    let grows = counters.iter().all(|(a, b)| a.is_none() || b.is_none() || a <= b);
    same && grows && counters.iter().any(|(a, b)| a.is_some() && b.is_some())
}
