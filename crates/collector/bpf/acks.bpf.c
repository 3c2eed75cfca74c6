/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Writes the state of watched sockets at every received segment, and events between segments, into one ring buffer.
 * README.md documents the interface with the loader. For other sockets the programs return after two or three loads.
 */
#include "tcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

enum { EVERY = 0, INTERVAL = 1, CHANGE = 2 };

struct {
	u64 netns_cookie; /* sockets of this network namespace; 0: none */
	u64 snd_gap_ns;   /* minimum time between two rows of a sender (INTERVAL) */
	u64 rcv_gap_ns;   /* the same of a receiver, in every mode */
	u32 mode;	  /* which acknowledgements of a sender write a row */
	u32 wakeup_bytes; /* bytes in the ring from which on each record wakes the reader */
} acks_config SEC(".rodata.acks");

/* The watched sockets, by port: the four bits below. */
u8 acks_ports[65536] SEC(".rodata.ports");
#define SND_LOCAL 1
#define SND_REMOTE 2
#define RCV_LOCAL 4
#define RCV_REMOTE 8

struct {
	u64 unwatched; /* segments of sockets that did not fit into acks_flows */
	u64 after_ack; /* 1: the fexit program handles senders; set before any program is attached */
	u64 all_retransmits; /* 1: acks_retransmit_err is loaded, which also sees failed retransmissions */
} acks_global SEC(".data.acks");

/* State of one socket. User space reads the first five fields and the missed_ and coalesced_ counters. */
struct flow {
	u64 segments; /* received */
	u64 rows;     /* written to the ring */
	u64 lost_rows;		 /* rows dropped because the ring was full */
	u64 events, lost_events; /* the same of events */
	u64 last_ns; /* time of the last row */
	u64 ca_ops;  /* icsk_ca_ops of the last CC event */
	u32 ports;   /* local, and remote << 16 */
	u32 cwnd, ssthresh, total_retrans, lost_out, delivered_ce, min_rtt, rcv_ooopack;
	u8 ca_state, retransmits, seen, unused;
	u32 rto_una; /* snd_una at the last timeout */
	u32 seen_segs; /* segments that programs saw; a packet of GRO or of a coalesced backlog counts as its gso_segs */
	u32 coalesced_segs; /* of these, segments that share a packet with another */
	u32 missed_segs;    /* segments in tp->segs_in that no program saw */
	u32 seen_retrans, missed_retrans; /* packets in tp->total_retrans, with an event and without */
	u16 missed_states;		  /* changes of icsk_ca_state without an event */
	u8 next_ca_state, ca_state_known; /* the new state of the last event */
};

struct {
	int (*type)[1]; /* BPF_MAP_TYPE_HASH */
	int (*max_entries)[4096];
	u64 *key; /* socket cookie */
	struct flow *value;
} acks_flows SEC(".maps");

enum { ROW = 1, CC = 2, RETRANSMIT = 3, RTO = 4, CA_STATE = 5, CE_MARK = 6 };

/* User space converts jiffies. src/acks/abi.rs repeats these structures; its test compares the offsets. */
struct row {
	u32 kind, ports;
	u64 at_ns, cookie, segments, lost_rows;
	u64 bytes_acked, bytes_received, bytes_sent, bytes_retrans, pacing_rate;
	u32 rtt_us, rttvar_us, min_rtt_us, rto_jiffies, ato_jiffies;
	u32 snd_cwnd, snd_ssthresh, unacked, sacked, lost, retrans, reordering;
	u32 delivered, delivered_ce, rate_delivered, rate_interval_us;
	u32 total_retrans, segs_out, segs_in, data_segs_out, data_segs_in, notsent_bytes;
	u32 snd_wnd, rcv_wnd, rcv_ssthresh, rcv_rtt_us, rcv_space, rcv_ooopack;
	u32 dsack_dups, reord_seen, pmtu;
	u16 snd_mss, rcv_mss, advmss, rehash;
	u32 busy_jiffies, rwnd_limited_jiffies, sndbuf_limited_jiffies;
	u16 total_rto, total_rto_recoveries;
	u32 total_rto_time_ms;
	u32 received_ce, delivered_ecn_bytes[3], received_ecn_bytes[3];
	u8 ca_state, retransmits, backoff, probes, app_limited, ecn_flags, accecn, has;
};
#define HAS_RTO 1
#define HAS_ACCECN 2

/* Every record except rows. */
struct event {
	u32 kind, ports;
	u64 at_ns, cookie;
	u32 count, ca_state;
	u32 snd_cwnd, snd_ssthresh, rtt_us, unacked, lost, total_retrans;
	char cc[16]; /* CC */
};

struct {
	int (*type)[27]; /* BPF_MAP_TYPE_RINGBUF */
	int (*max_entries)[4194304];
	/* The records. No loader reads these two; they put the structures into BTF for the test of src/acks/abi.rs. */
	struct row *row;
	struct event *event;
} acks_ring SEC(".maps");

/* Ends a record. Usually the reader's timer is enough; in a burst the ring would be full before it expires. */
INLINE void submit(void *record)
{
	u64 bytes = bpf_ringbuf_query(&acks_ring, BPF_RB_AVAIL_DATA);

	bpf_ringbuf_submit(record, bytes < acks_config.wakeup_bytes ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP);
}

INLINE struct sock_common *common(struct tcp_sock___acks *tp)
{
	return &tp->inet_conn.icsk_inet.sk.__sk_common;
}

/* The bits of acks_ports for a socket of this namespace; 0: not watched. */
INLINE u32 role(struct sock *sk)
{
	u32 remote;

	if (sk->__sk_common.skc_net.net->net_cookie != acks_config.netns_cookie)
		return 0;
	/* Older verifiers (6.12) lose the bounds of a byte-swapped value, and clang would drop the mask. */
	remote = __builtin_bswap16(sk->__sk_common.skc_dport);
	asm volatile("" : "+r"(remote));
	remote &= 0xffff;
	return (acks_ports[sk->__sk_common.skc_num] & (SND_LOCAL | RCV_LOCAL)) |
	       (acks_ports[remote] & (SND_REMOTE | RCV_REMOTE));
}

INLINE struct flow *flow_of(struct tcp_sock___acks *tp, u64 cookie)
{
	struct flow *flow = bpf_map_lookup_elem(&acks_flows, &cookie);

	if (!flow) {
		struct flow fresh = {};

		fresh.ports = common(tp)->skc_num | (u32)__builtin_bswap16(common(tp)->skc_dport) << 16;
		bpf_map_update_elem(&acks_flows, &cookie, &fresh, BPF_NOEXIST);
		flow = bpf_map_lookup_elem(&acks_flows, &cookie);
		if (!flow)
			__sync_fetch_and_add(&acks_global.unwatched, 1);
	}
	return flow;
}

/* The state of a watched socket, with its tcp_sock and cookie; null: it is a request or TIME_WAIT socket, or acks_flows is full. */
INLINE struct flow *find_flow(struct sock *sk, struct tcp_sock___acks **tp, u64 *cookie)
{
	*tp = bpf_skc_to_tcp_sock(sk);
	if (!*tp)
		return 0;
	*cookie = bpf_get_socket_cookie(sk);
	return flow_of(*tp, *cookie);
}

INLINE struct event *begin_event(struct tcp_sock___acks *tp, struct flow *flow, u64 cookie, u32 kind, u32 count)
{
	struct event *event = bpf_ringbuf_reserve(&acks_ring, sizeof(*event), 0);

	if (!event) {
		flow->lost_events++;
		return 0;
	}
	flow->events++;
	event->kind = kind;
	event->ports = flow->ports;
	event->at_ns = bpf_ktime_get_ns();
	event->cookie = cookie;
	event->count = count;
	event->ca_state = BITS(tp, inet_conn.icsk_ca_state);
	event->snd_cwnd = tp->snd_cwnd;
	event->snd_ssthresh = tp->snd_ssthresh;
	event->rtt_us = tp->srtt_us >> 3;
	event->unacked = tp->packets_out;
	event->lost = tp->lost_out;
	event->total_retrans = tp->total_retrans;
	__builtin_memset(event->cc, 0, sizeof(event->cc));
	return event;
}

/* Emits a CC event if the congestion control has changed. */
INLINE void emit_cc(struct tcp_sock___acks *tp, struct flow *flow, u64 cookie)
{
	struct tcp_congestion_ops___acks *ops = tp->inet_conn.icsk_ca_ops;
	struct event *event;

	if ((u64)ops == flow->ca_ops)
		return;
	event = begin_event(tp, flow, cookie, CC, 0);
	if (!event)
		return;
	bpf_probe_read_kernel_str(event->cc, sizeof(event->cc), ops->name);
	flow->ca_ops = (u64)ops;
	submit(event);
}

INLINE void emit_ce(struct tcp_sock___acks *tp, struct flow *flow, u64 cookie, u32 count)
{
	struct event *event = begin_event(tp, flow, cookie, CE_MARK, count);

	if (event)
		submit(event);
}

/* Updates the fields that mode CHANGE compares; returns whether any differs, or no row has been written yet. */
INLINE u32 changed(struct tcp_sock___acks *tp, struct flow *flow)
{
	u32 state = BITS(tp, inet_conn.icsk_ca_state), min_rtt = tp->rtt_min.s[0].v;
	u32 differs = flow->cwnd ^ tp->snd_cwnd;

	differs |= flow->ssthresh ^ tp->snd_ssthresh;
	differs |= flow->total_retrans ^ tp->total_retrans;
	differs |= flow->lost_out ^ tp->lost_out;
	differs |= flow->delivered_ce ^ tp->delivered_ce;
	differs |= flow->min_rtt ^ min_rtt;
	differs |= flow->ca_state ^ state;
	flow->cwnd = tp->snd_cwnd;
	flow->ssthresh = tp->snd_ssthresh;
	flow->total_retrans = tp->total_retrans;
	flow->lost_out = tp->lost_out;
	flow->min_rtt = min_rtt;
	flow->ca_state = state;
	return differs || !flow->seen;
}

/* Busy and limited times, as tcp_get_info_chrono_stats() computes them. */
INLINE void put_chrono(struct row *row, struct tcp_sock___acks *tp)
{
	u32 type = BITS(tp, chrono_type);
	u32 now = type ? (u32)bpf_jiffies64() - tp->chrono_start : 0;

	row->rwnd_limited_jiffies = tp->chrono_stat[1] + (type == 2 ? now : 0);
	row->sndbuf_limited_jiffies = tp->chrono_stat[2] + (type == 3 ? now : 0);
	row->busy_jiffies = tp->chrono_stat[0] + (type == 1 ? now : 0) + row->rwnd_limited_jiffies +
			    row->sndbuf_limited_jiffies;
}

/* Fields that not all kernels have: 0 if missing, with their bit in `has` cleared. */
INLINE void put_newer(struct row *row, struct tcp_sock___acks *tp)
{
	u32 rehash = tp->timeout_rehash;

	row->has = 0;
	row->accecn = 0;
	if (HAS(tp, plb_rehash))
		rehash += tp->plb_rehash;
	row->advmss = tp->advmss;
	row->rehash = rehash;
	row->total_rto = 0;
	row->total_rto_recoveries = 0;
	row->total_rto_time_ms = 0;
	if (HAS(tp, total_rto)) {
		row->has |= HAS_RTO;
		row->total_rto = tp->total_rto;
		row->total_rto_recoveries = tp->total_rto_recoveries;
		row->total_rto_time_ms = tp->total_rto_time;
		/* The recovery in progress, as in tcp_get_info(): rto_stamp is the low half of tcp_clock_ms(). */
		if (HAS(tp, rto_stamp) && tp->rto_stamp)
			row->total_rto_time_ms += (u32)(row->at_ns / 1000000) - tp->rto_stamp;
	}
	if (HAS(tp, received_ecn_bytes)) {
		row->has |= HAS_ACCECN;
		row->received_ce = tp->received_ce;
		row->delivered_ecn_bytes[0] = tp->delivered_ecn_bytes[0];
		row->delivered_ecn_bytes[1] = tp->delivered_ecn_bytes[1];
		row->delivered_ecn_bytes[2] = tp->delivered_ecn_bytes[2];
		row->received_ecn_bytes[0] = tp->received_ecn_bytes[0];
		row->received_ecn_bytes[1] = tp->received_ecn_bytes[1];
		row->received_ecn_bytes[2] = tp->received_ecn_bytes[2];
		row->accecn = BITS(tp, accecn_fail_mode) | BITS(tp, saw_accecn_opt) << 4;
	} else {
		row->received_ce = 0;
		__builtin_memset(row->delivered_ecn_bytes, 0, sizeof(row->delivered_ecn_bytes));
		__builtin_memset(row->received_ecn_bytes, 0, sizeof(row->received_ecn_bytes));
	}
}

INLINE void put_sender(struct row *row, struct tcp_sock___acks *tp)
{
	row->bytes_acked = tp->bytes_acked;
	row->bytes_sent = tp->bytes_sent;
	row->bytes_retrans = tp->bytes_retrans;
	row->pacing_rate = tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
	row->rtt_us = tp->srtt_us >> 3;
	row->rttvar_us = tp->mdev_us >> 2;
	row->min_rtt_us = tp->rtt_min.s[0].v;
	row->rto_jiffies = tp->inet_conn.icsk_rto;
	row->snd_cwnd = tp->snd_cwnd;
	row->snd_ssthresh = tp->snd_ssthresh;
	row->unacked = tp->packets_out;
	row->sacked = tp->sacked_out;
	row->lost = tp->lost_out;
	row->retrans = tp->retrans_out;
	row->reordering = tp->reordering;
	row->delivered = tp->delivered;
	row->delivered_ce = tp->delivered_ce;
	row->rate_delivered = tp->rate_delivered;
	row->rate_interval_us = tp->rate_interval_us;
	row->total_retrans = tp->total_retrans;
	row->segs_out = tp->segs_out;
	row->data_segs_out = tp->data_segs_out;
	row->notsent_bytes = tp->write_seq - tp->snd_nxt;
	row->snd_wnd = tp->snd_wnd;
	row->dsack_dups = tp->dsack_dups;
	row->reord_seen = tp->reord_seen;
	row->ca_state = BITS(tp, inet_conn.icsk_ca_state);
	row->retransmits = tp->inet_conn.icsk_retransmits;
	row->backoff = tp->inet_conn.icsk_backoff;
	row->probes = tp->inet_conn.icsk_probes_out;
	row->app_limited = BITS(tp, rate_app_limited);
	put_chrono(row, tp);
}

INLINE void put_receiver(struct row *row, struct tcp_sock___acks *tp)
{
	row->bytes_received = tp->bytes_received;
	row->segs_in = tp->segs_in;
	row->data_segs_in = tp->data_segs_in;
	row->rcv_wnd = tp->rcv_wnd;
	row->rcv_ssthresh = tp->rcv_ssthresh;
	row->rcv_rtt_us = tp->rcv_rtt_est.rtt_us >> 3;
	row->rcv_space = tp->rcvq_space.space;
	row->rcv_ooopack = tp->rcv_ooopack;
	row->ato_jiffies = BITS(tp, inet_conn.icsk_ack.ato);
	row->pmtu = tp->inet_conn.icsk_pmtu_cookie;
	row->snd_mss = tp->mss_cache;
	row->rcv_mss = tp->inet_conn.icsk_ack.rcv_mss;
	row->ecn_flags = tp->ecn_flags;
}

INLINE void put_row(struct tcp_sock___acks *tp, struct flow *flow, u64 cookie, u64 now)
{
	struct row *row = bpf_ringbuf_reserve(&acks_ring, sizeof(*row), 0);

	if (!row) {
		flow->lost_rows++;
		return;
	}
	flow->rows++;
	row->kind = ROW;
	row->ports = flow->ports;
	row->at_ns = now;
	row->cookie = cookie;
	row->segments = flow->segments;
	row->lost_rows = flow->lost_rows;
	put_sender(row, tp);
	put_receiver(row, tp);
	put_newer(row, tp);
	submit(row);
}

/* find_flow() for a socket that received a segment, which is counted. */
INLINE struct flow *count_segment(struct sock *sk, struct tcp_sock___acks **tp, u64 *cookie)
{
	struct flow *flow = find_flow(sk, tp, cookie);

	if (flow)
		flow->segments++;
	return flow;
}

/* A sender received an acknowledgement. */
INLINE void on_ack(struct sock *sk)
{
	struct tcp_sock___acks *tp;
	struct flow *flow;
	u64 cookie, now;
	u32 keep = 1;

	flow = count_segment(sk, &tp, &cookie);
	if (!flow)
		return;
	emit_cc(tp, flow, cookie);
	if (flow->seen && tp->delivered_ce != flow->delivered_ce)
		emit_ce(tp, flow, cookie, tp->delivered_ce - flow->delivered_ce);
	if (acks_config.mode == CHANGE)
		keep = changed(tp, flow);
	flow->delivered_ce = tp->delivered_ce;
	flow->seen = 1;
	if (!keep)
		return;
	now = bpf_ktime_get_ns();
	if (acks_config.mode == INTERVAL && now - flow->last_ns < acks_config.snd_gap_ns)
		return;
	flow->last_ns = now;
	put_row(tp, flow, cookie, now);
}

/* Segments in a packet, as tcp_segs_in() counts them: more than one after GRO or coalescing in the backlog. */
INLINE u32 gso_segs(struct sk_buff *skb)
{
	struct skb_shared_info *info = (void *)0;
	u16 segments = 0;

	bpf_probe_read_kernel(&segments, sizeof(segments),
			      skb->head + skb->end + FIELD_INFO(info, gso_segs, 0));
	return segments ? segments : 1;
}

/* Segments in a packet if it is marked CE, else 0. */
INLINE u32 ce_segs(struct sk_buff *skb)
{
	struct tcp_skb_cb *cb = (void *)0;
	const u8 *field = (const u8 *)skb + FIELD_INFO(skb, cb, 0) + FIELD_INFO(cb, ip_dsfield, 0);

	asm volatile("" : "+r"(field));
	return (*field & CE) == CE ? gso_segs(skb) : 0;
}

/*
 * Compares the kernel's counters of an established socket with the counts of these programs. The kernel does not run a
 * tracing program that is already active on the CPU, and may skip it for other reasons; it does not always count that.
 * Segments of the handshake are in segs_in, but do not pass tcp_probe: the SYN-ACK of a socket that connected, the SYN
 * and the ACK of one that was accepted. Segments in the backlog are in segs_in but not yet processed, so the comparison
 * waits until the backlog is empty.
 */
INLINE void count_missed(struct sock *sk, struct sk_buff *skb, u32 roles)
{
	u32 accepted = roles & (SND_LOCAL | RCV_LOCAL), segments;
	struct tcp_sock___acks *tp;
	struct flow *flow;
	u64 cookie;
	s32 missed;

	flow = find_flow(sk, &tp, &cookie);
	if (!flow)
		return;
	/* A retransmitted SYN-ACK is in the accepted socket's total_retrans, but had no event there. */
	if (!flow->seen_segs && accepted)
		flow->seen_retrans = tp->total_retrans;
	segments = gso_segs(skb);
	flow->seen_segs += segments;
	flow->coalesced_segs += segments - 1;
	if (((struct sock___acks *)sk)->sk_backlog.len)
		return;
	missed = tp->segs_in - (accepted ? 2 : 1) - flow->seen_segs;
	if (missed > (s32)flow->missed_segs)
		flow->missed_segs = missed;
	missed = tp->total_retrans - flow->seen_retrans;
	if (acks_global.all_retransmits && missed > (s32)flow->missed_retrans)
		flow->missed_retrans = missed;
}

/* A receiver received a segment. */
INLINE void on_segment(struct sock *sk, struct sk_buff *skb)
{
	struct tcp_sock___acks *tp;
	struct flow *flow;
	u64 cookie, now;
	u32 marks;

	flow = count_segment(sk, &tp, &cookie);
	if (!flow)
		return;
	marks = ce_segs(skb);
	if (marks)
		emit_ce(tp, flow, cookie, marks);
	now = bpf_ktime_get_ns();
	if (now - flow->last_ns < acks_config.rcv_gap_ns)
		return;
	flow->last_ns = now;
	emit_cc(tp, flow, cookie);
	put_row(tp, flow, cookie, now);
}

SEC("fexit/tcp_ack") int acks_after(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];

	if (role(sk) & (SND_LOCAL | SND_REMOTE))
		on_ack(sk);
	return 0;
}

SEC("tp_btf/tcp_probe") int acks_segment(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	u32 roles = role(sk);

	if (!roles)
		return 0;
	count_missed(sk, (void *)ctx[1], roles);
	if (roles & (RCV_LOCAL | RCV_REMOTE))
		on_segment(sk, (void *)ctx[1]);
	else if (!acks_global.after_ack)
		on_ack(sk);
	return 0;
}

INLINE int on_retransmit(struct sock *sk, struct sk_buff *skb, int err)
{
	struct tcp_skb_cb *cb = (void *)0;
	struct event *event;
	struct flow *flow;
	u16 segments = 0;
	u32 timeouts;
	u64 cookie;
	struct tcp_sock___acks *tp;

	if (!role(sk))
		return 0;
	flow = find_flow(sk, &tp, &cookie);
	if (!flow)
		return 0;
	bpf_probe_read_kernel(&segments, sizeof(segments),
			      (u8 *)skb + FIELD_INFO(skb, cb, 0) + FIELD_INFO(cb, tcp_gso_segs, 0));
	flow->seen_retrans += segments ? segments : 1;
	if (err)
		return 0;
	/*
	 * The kernel increments icsk_retransmits just before it retransmits, and resets it when new data is acknowledged,
	 * which tcp_probe does not see. A timeout is new if the counter has grown or snd_una has moved.
	 */
	timeouts = tp->inet_conn.icsk_retransmits;
	if (timeouts && (timeouts > flow->retransmits || tp->snd_una != flow->rto_una)) {
		flow->retransmits = timeouts;
		flow->rto_una = tp->snd_una;
		event = begin_event(tp, flow, cookie, RTO, timeouts);
		if (event)
			submit(event);
	}
	event = begin_event(tp, flow, cookie, RETRANSMIT, segments ? segments : 1);
	if (event)
		submit(event);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb") int acks_retransmit(u64 *ctx)
{
	return on_retransmit((void *)ctx[0], (void *)ctx[1], 0);
}

/* Newer kernels pass the result of the retransmission as third argument. */
SEC("tp_btf/tcp_retransmit_skb") int acks_retransmit_err(u64 *ctx)
{
	return on_retransmit((void *)ctx[0], (void *)ctx[1], (int)ctx[2]);
}

SEC("tp_btf/tcp_cong_state_set") int acks_state(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	u8 state = ctx[1];
	struct event *event;
	struct flow *flow;
	u64 cookie;
	struct tcp_sock___acks *tp;

	if (!role(sk))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || BITS(tp, inet_conn.icsk_ca_state) == state)
		return 0;
	cookie = bpf_get_socket_cookie(sk);
	flow = flow_of(tp, cookie);
	if (!flow)
		return 0;
	if (flow->ca_state_known && BITS(tp, inet_conn.icsk_ca_state) != flow->next_ca_state)
		flow->missed_states++;
	flow->next_ca_state = state;
	flow->ca_state_known = 1;
	event = begin_event(tp, flow, cookie, CA_STATE, 0);
	if (event) {
		/* The state is not set yet: `count` holds the old one. */
		event->count = event->ca_state;
		event->ca_state = state;
		submit(event);
	}
	return 0;
}
