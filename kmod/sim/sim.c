/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define NEVER (~(u64)0)
#define US 1000ull
#define MASK (SIM_WINDOW - 1)
#define QUEUE_SLOTS 65536u
#define INITIAL_CWND 10u
#define RTO_MIN_US 200000u
#define DUPTHRESH 3u

enum packet_state { FREE, OUT, DELIVERED, LOST };

/* One transmission, in the order sent. */
struct packet {
	u64 sent_ns, first_sent_ns, delivered_ns; /* the last two: of the rate sample */
	u32 seq;				  /* in packets */
	u32 delivered;				  /* flow's count when sent */
	u8 state, again, app_limited;
};

struct ack_in_flight {
	u64 at_ns;
	u64 index;
	u8 ce;
};

struct flow {
	struct sim_flow_config config;
	struct cc_conn *conn;
	struct packet sent[SIM_WINDOW];
	u64 head, next; /* oldest unresolved and next transmission */
	u8 received[SIM_WINDOW];
	u32 una, nxt; /* in packets */
	u32 lost_queue[SIM_WINDOW];
	u32 lost_head, lost_tail;
	struct ack_in_flight acks[SIM_WINDOW];
	u32 ack_head, ack_tail;
	u64 last_ack_at_ns;
	u64 rto_at_ns, send_at_ns;
	u32 backoff;
	u32 inflight, cwnd, ssthresh, prior_cwnd, high;
	enum cc_ca_state state;
	u32 prr_delivered, prr_out;
	u32 srtt8_us, mdev4_us, rtt_min_us;
	u64 delivered_ns, first_sent_ns;
	u64 pacing;
	u32 limited_until;
	u8 limited, started, stopped;
	u64 delivered, delivered_ce, sent_count, again_count, marked, dropped;
	u32 timeouts, recoveries;
	u32 lost_now;
};

struct queued {
	u64 in_ns, index;
	u32 flow;
};

struct sim {
	struct sim_path path;
	struct sim_observer observer;
	struct flow *flows[SIM_FLOWS_MAX];
	u32 count;
	u64 now_ns, sample_at_ns;
	u64 seed;
	struct queued queue[QUEUE_SLOTS];
	u32 queue_head, queue_tail, queue_bytes;
	u64 sent_at_ns; /* when the packet on the wire is out; NEVER if the wire is idle */
	struct queued wire;
	u8 wire_ce;
};

static void try_send(struct sim *sim, struct flow *f);

struct sim *sim_new(const struct sim_path *path, const struct sim_observer *observer)
{
	struct sim *sim = calloc(1, sizeof(*sim));

	if (!sim)
		abort();
	sim->path = *path;
	if (observer)
		sim->observer = *observer;
	sim->seed = path->seed ? path->seed : 1;
	sim->sent_at_ns = NEVER;
	sim->sample_at_ns = sim->observer.sample ? sim->observer.sample_us * US : NEVER;
	return sim;
}

void sim_free(struct sim *sim)
{
	u32 i;

	for (i = 0; i < sim->count; i++)
		free(sim->flows[i]);
	free(sim);
}

u32 sim_add(struct sim *sim, const struct sim_flow_config *config)
{
	struct flow *f = calloc(1, sizeof(*f));

	if (!f || sim->count == SIM_FLOWS_MAX)
		abort();
	f->config = *config;
	f->conn = &f->config.conn;
	f->cwnd = INITIAL_CWND;
	f->ssthresh = CC_INFINITE;
	f->rtt_min_us = CC_NO_RTT;
	f->rto_at_ns = NEVER;
	f->send_at_ns = config->start_us * US;
	f->limited = 1;
	sim->flows[sim->count] = f;
	return sim->count++;
}

u32 sim_flow_count(const struct sim *sim)
{
	return sim->count;
}

u32 sim_queue_bytes(const struct sim *sim)
{
	return sim->queue_bytes;
}

struct sim_flow_view sim_view(const struct sim *sim, u32 flow)
{
	const struct flow *f = sim->flows[flow];

	return (struct sim_flow_view){
		.conn = f->conn,
		.delivered_pkts = f->delivered,
		.sent_pkts = f->sent_count,
		.retransmitted_pkts = f->again_count,
		.marked_pkts = f->marked,
		.dropped_pkts = f->dropped,
		.timeouts = f->timeouts,
		.recoveries = f->recoveries,
		.cwnd_pkts = f->cwnd,
		.ssthresh_pkts = f->ssthresh,
		.srtt_us = f->srtt8_us >> 3,
		.inflight_pkts = f->inflight,
		.ca_state = f->state,
		.pacing_bytes_per_sec = f->pacing,
	};
}

/* Sequence numbers start near the wrap, so that every run crosses it. */
static u32 wire_seq(u32 packet)
{
	return 0xfff00000u + packet * SIM_MSS;
}

static struct cc_ack view_of(struct sim *sim, struct flow *f)
{
	int ecn = sim->path.mark_us && (cc_conn_wants(f->conn) & CC_WANTS_ECN);

	return (struct cc_ack){
		.now_us = sim->now_ns / US,
		.pacing_bytes_per_sec = f->pacing,
		.srtt_us = f->srtt8_us >> 3,
		.mdev_us = f->mdev4_us,
		.rtt_min_us = f->rtt_min_us,
		.inflight_pkts = f->inflight,
		.prior_inflight_pkts = f->inflight,
		.cwnd_pkts = f->cwnd,
		.ssthresh_pkts = f->ssthresh,
		.cwnd_clamp_pkts = SIM_WINDOW / 2,
		.prior_cwnd_pkts = f->prior_cwnd,
		.una_seq = wire_seq(f->una),
		.nxt_seq = wire_seq(f->nxt),
		.delivered_pkts = (u32)f->delivered,
		.delivered_ce_pkts = (u32)f->delivered_ce,
		.rate_prior_delivered_pkts = (u32)f->delivered,
		.mss_bytes = SIM_MSS,
		.random = cc_random(&sim->seed),
		.ca_state = f->state,
		.flags = (f->limited ? CC_CWND_LIMITED : 0) | (ecn ? CC_ECN : 0),
	};
}

static void apply(struct flow *f, const struct cc_out *out)
{
	f->cwnd = out->cwnd_pkts;
	f->ssthresh = out->ssthresh_pkts;
	if (out->pacing_bytes_per_sec)
		f->pacing = out->pacing_bytes_per_sec;
}

static void call_event(struct sim *sim, struct flow *f, u32 event)
{
	struct cc_ack a = view_of(sim, f);
	struct cc_out out;

	cc_call_event(f->conn, event, &a, &out);
	apply(f, &out);
}

static void enter(struct sim *sim, struct flow *f, enum cc_ca_state state)
{
	call_event(sim, f, (u32)state); /* states and events share their first values */
	f->state = state;
}

/* Recovery or CWR: the window shrinks by PRR towards what the core answers. */
static void reduce(struct sim *sim, struct flow *f, enum cc_ca_state state)
{
	struct cc_ack a = view_of(sim, f);

	if (f->state != CC_CWR || state != CC_RECOVERY) {
		f->prior_cwnd = f->cwnd;
		f->ssthresh = cc_call_loss(f->conn, &a);
		f->prr_delivered = 0;
		f->prr_out = 0;
	}
	f->high = f->nxt;
	enter(sim, f, state);
}

static void start_wire(struct sim *sim)
{
	struct queued *q = &sim->queue[sim->queue_head % QUEUE_SLOTS];
	u64 waited_ns = sim->now_ns - q->in_ns;
	struct flow *f = sim->flows[q->flow];

	sim->queue_head++;
	sim->queue_bytes -= SIM_FRAME;
	sim->wire = *q;
	sim->wire_ce = sim->path.mark_us && (cc_conn_wants(f->conn) & CC_WANTS_ECN) &&
		       waited_ns > sim->path.mark_us * US;
	f->marked += sim->wire_ce;
	sim->sent_at_ns = sim->now_ns + SIM_FRAME * 8 * 1000000000ull / sim->path.rate_bps;
}

static void enqueue(struct sim *sim, u32 flow, u64 index)
{
	if (sim->queue_bytes + SIM_FRAME > sim->path.queue_bytes ||
	    sim->queue_tail - sim->queue_head == QUEUE_SLOTS) {
		sim->flows[flow]->dropped++;
		return;
	}
	sim->queue[sim->queue_tail++ % QUEUE_SLOTS] = (struct queued){sim->now_ns, index, flow};
	sim->queue_bytes += SIM_FRAME;
	if (sim->sent_at_ns == NEVER)
		start_wire(sim);
}

static void wire_done(struct sim *sim)
{
	struct flow *f = sim->flows[sim->wire.flow];
	u64 at_ns = sim->now_ns + (sim->path.delay_us + f->config.extra_delay_us) * US;

	if (sim->path.jitter_us)
		at_ns += cc_random(&sim->seed) % (sim->path.jitter_us * US);
	if (at_ns <= f->last_ack_at_ns)
		at_ns = f->last_ack_at_ns + 1;
	f->last_ack_at_ns = at_ns;
	f->acks[f->ack_tail++ & MASK] = (struct ack_in_flight){at_ns, sim->wire.index, sim->wire_ce};
	sim->sent_at_ns = NEVER;
	if (sim->queue_head != sim->queue_tail)
		start_wire(sim);
}

static void transmit(struct sim *sim, struct flow *f, u32 flow, u32 seq, int again)
{
	struct packet *p = &f->sent[f->next & MASK];

	if (!f->inflight) {
		f->first_sent_ns = sim->now_ns;
		f->delivered_ns = sim->now_ns;
	}
	*p = (struct packet){
		.sent_ns = sim->now_ns,
		.first_sent_ns = f->first_sent_ns,
		.delivered_ns = f->delivered_ns,
		.seq = seq,
		.delivered = (u32)f->delivered,
		.state = OUT,
		.again = (u8)again,
	};
	f->inflight++;
	f->sent_count++;
	f->again_count += (u32)again;
	f->prr_out++;
	enqueue(sim, flow, f->next);
	f->next++;
	if (f->rto_at_ns == NEVER)
		f->rto_at_ns = sim->now_ns + RTO_MIN_US * US * 5;
}

static u32 index_of(const struct sim *sim, const struct flow *f)
{
	u32 i;

	for (i = 0; i < sim->count; i++)
		if (sim->flows[i] == f)
			break;
	return i;
}

static void try_send(struct sim *sim, struct flow *f)
{
	u32 flow = index_of(sim, f);

	f->send_at_ns = NEVER;
	while (f->inflight < f->cwnd && f->next - f->head < SIM_WINDOW) {
		u64 gap_ns = f->pacing ? SIM_MSS * 1000000000ull / f->pacing : 0;
		u32 seq;
		int again = 0;

		while (f->lost_head != f->lost_tail) {
			seq = f->lost_queue[f->lost_head & MASK];
			if (seq - f->una < SIM_WINDOW && !f->received[seq & MASK]) {
				again = 1;
				break;
			}
			f->lost_head++;
		}
		if (again)
			f->lost_head++;
		else if (f->stopped || f->nxt - f->una >= SIM_WINDOW - 1)
			break;
		else
			seq = f->nxt++;
		transmit(sim, f, flow, seq, again);
		if (gap_ns) {
			f->send_at_ns = sim->now_ns + gap_ns;
			break;
		}
	}
	/* As the stack judges it: once the window was full, it holds for a window. */
	if (f->inflight >= f->cwnd) {
		f->limited = 1;
		f->limited_until = f->nxt;
	} else if ((s32)(f->una - f->limited_until) > 0) {
		f->limited = f->cwnd < f->ssthresh;
	}
}

static void begin(struct sim *sim, struct flow *f)
{
	struct cc_ack a = view_of(sim, f);
	struct cc_out out;

	f->started = 1;
	cc_call_init(f->conn, &a, &out);
	apply(f, &out);
	call_event(sim, f, CC_EVENT_TX_START);
	try_send(sim, f);
}

static void measure(struct flow *f, u32 rtt_us)
{
	u32 deviation;

	f->rtt_min_us = cc_min(f->rtt_min_us, rtt_us);
	if (!f->srtt8_us) {
		f->srtt8_us = rtt_us << 3;
		f->mdev4_us = rtt_us << 1;
		return;
	}
	deviation = rtt_us > f->srtt8_us >> 3 ? rtt_us - (f->srtt8_us >> 3) : (f->srtt8_us >> 3) - rtt_us;
	f->srtt8_us = f->srtt8_us - (f->srtt8_us >> 3) + rtt_us;
	f->mdev4_us = f->mdev4_us - (f->mdev4_us >> 2) + deviation;
}

static void arm_rto(struct sim *sim, struct flow *f)
{
	u64 rto_us = (f->srtt8_us >> 3) + cc_max(f->mdev4_us, RTO_MIN_US);

	f->rto_at_ns = f->inflight || f->lost_head != f->lost_tail
			       ? sim->now_ns + (rto_us << f->backoff) * US
			       : NEVER;
}

static void lose(struct flow *f, struct packet *p)
{
	p->state = LOST;
	f->inflight--;
	f->lost_now++;
	f->lost_queue[f->lost_tail++ & MASK] = p->seq;
}

/* The path keeps order, so what was sent three packets before a delivered one is lost. */
static void find_losses(struct flow *f, u64 index)
{
	while (f->head < f->next) {
		struct packet *p = &f->sent[f->head & MASK];

		if (p->state == OUT) {
			if (f->head + DUPTHRESH > index)
				break;
			lose(f, p);
		}
		f->head++;
	}
}

/* RFC 6937 with the stack's safe reduction bound. */
static void prr(struct flow *f, u32 acked)
{
	u32 send, grant;

	f->prr_delivered += acked;
	if (f->inflight > f->ssthresh) {
		u64 share = ((u64)f->ssthresh * f->prr_delivered + f->prior_cwnd - 1) /
			    cc_max(f->prior_cwnd, 1);

		send = cc_minus((u32)share, f->prr_out);
	} else {
		grant = cc_max(cc_minus(f->prr_delivered, f->prr_out), acked) + (f->lost_now ? 0 : 1);
		send = cc_min(f->ssthresh - f->inflight, grant);
	}
	send = cc_max(send, f->prr_out ? 0 : 1);
	f->cwnd = f->inflight + send;
}

static void rate_sample(struct sim *sim, struct flow *f, const struct packet *p, struct cc_ack *a)
{
	u64 sending_ns = p->sent_ns - p->first_sent_ns;
	u64 acking_ns = sim->now_ns - p->delivered_ns;

	a->rate_prior_delivered_pkts = p->delivered;
	a->rate_delivered_pkts = (u32)f->delivered - p->delivered;
	a->rate_interval_us = (u32)((sending_ns > acking_ns ? sending_ns : acking_ns) / US);
	f->first_sent_ns = p->sent_ns;
}

static void change_state(struct sim *sim, struct flow *f, int ce)
{
	int done = (s32)(f->una - f->high) >= 0;

	if ((f->state == CC_RECOVERY || f->state == CC_CWR || f->state == CC_LOSS) && done) {
		if (f->state != CC_LOSS && !(f->conn->ops->wants & CC_OWNS_CWND))
			f->cwnd = f->ssthresh;
		enter(sim, f, CC_OPEN);
	}
	if (f->lost_now && f->state != CC_RECOVERY && f->state != CC_LOSS) {
		f->recoveries++;
		reduce(sim, f, CC_RECOVERY);
	} else if (ce && f->state == CC_OPEN) {
		reduce(sim, f, CC_CWR);
	}
}

static void observe_round(struct sim *sim, struct flow *f, const struct cc_ack *a, u32 flags)
{
	if ((flags & CC_OUT_ROUND) && sim->observer.round)
		sim->observer.round(sim->observer.context, a->now_us, index_of(sim, f), f->conn, a);
}

static void on_ack(struct sim *sim, struct flow *f)
{
	struct ack_in_flight ack = f->acks[f->ack_head++ & MASK];
	struct packet p = f->sent[ack.index & MASK];
	u32 prior_inflight = f->inflight, old_una = f->una, rtt_us = 0;
	int fresh = p.seq - f->una < SIM_WINDOW && !f->received[p.seq & MASK];
	struct cc_ack a;
	struct cc_out out;

	f->lost_now = 0;
	if (p.state == OUT) {
		f->sent[ack.index & MASK].state = DELIVERED;
		f->inflight--;
	}
	if (!p.again) {
		rtt_us = (u32)((sim->now_ns - p.sent_ns) / US);
		measure(f, rtt_us);
	}
	if (fresh) {
		f->received[p.seq & MASK] = 1;
		f->delivered++;
		f->delivered_ce += ack.ce;
		f->delivered_ns = sim->now_ns;
	}
	while (f->una != f->nxt && f->received[f->una & MASK])
		f->received[f->una++ & MASK] = 0;
	find_losses(f, ack.index);
	if (f->una != old_una)
		f->backoff = 0;
	arm_rto(sim, f);
	change_state(sim, f, ack.ce);

	a = view_of(sim, f);
	a.rtt_us = rtt_us;
	a.prior_inflight_pkts = prior_inflight;
	a.acked_pkts = (u32)fresh;
	a.lost_pkts = f->lost_now;
	rate_sample(sim, f, &p, &a);
	if (fresh)
		observe_round(sim, f, &a, cc_call_sample(f->conn, &a));
	if (!(f->conn->ops->wants & CC_OWNS_CWND)) {
		if (f->state == CC_CWR || f->state == CC_RECOVERY) {
			prr(f, (u32)fresh);
			try_send(sim, f);
			return;
		}
		if (f->una == old_una)
			goto send;
	}
	cc_call_ack(f->conn, &a, &out);
	apply(f, &out);
	observe_round(sim, f, &a, out.flags);
send:
	if (f->send_at_ns == NEVER)
		try_send(sim, f);
}

static void on_timeout(struct sim *sim, struct flow *f)
{
	struct cc_ack a = view_of(sim, f);
	u64 i;

	f->timeouts++;
	f->lost_now = 0;
	for (i = f->head; i < f->next; i++)
		if (f->sent[i & MASK].state == OUT)
			lose(f, &f->sent[i & MASK]);
	if (f->state != CC_LOSS) {
		f->prior_cwnd = f->cwnd;
		f->ssthresh = cc_call_loss(f->conn, &a);
		call_event(sim, f, CC_EVENT_RTO);
	}
	f->cwnd = 1;
	f->high = f->nxt;
	enter(sim, f, CC_LOSS);
	if (f->backoff < 6)
		f->backoff++;
	arm_rto(sim, f);
	try_send(sim, f);
}

static u64 next_event(const struct sim *sim, struct flow **which)
{
	u64 at, best = sim->sent_at_ns;
	u32 i;

	*which = NULL;
	for (i = 0; i < sim->count; i++) {
		struct flow *f = sim->flows[i];

		at = f->rto_at_ns < f->send_at_ns ? f->rto_at_ns : f->send_at_ns;
		if (f->ack_head != f->ack_tail && f->acks[f->ack_head & MASK].at_ns < at)
			at = f->acks[f->ack_head & MASK].at_ns;
		if (at < best) {
			best = at;
			*which = f;
		}
	}
	return best;
}

static void step(struct sim *sim, struct flow *f)
{
	if (!f) {
		wire_done(sim);
	} else if (f->ack_head != f->ack_tail && f->acks[f->ack_head & MASK].at_ns <= sim->now_ns) {
		on_ack(sim, f);
	} else if (f->send_at_ns <= sim->now_ns) {
		if (f->started)
			try_send(sim, f);
		else
			begin(sim, f);
	} else {
		on_timeout(sim, f);
	}
}

void sim_run(struct sim *sim, u64 end_us)
{
	for (;;) {
		struct flow *f;
		u64 at = next_event(sim, &f);
		u32 i;

		if (sim->sample_at_ns <= at && sim->sample_at_ns <= end_us * US) {
			sim->now_ns = sim->sample_at_ns;
			sim->observer.sample(sim->observer.context, sim->now_ns / US, sim);
			sim->sample_at_ns += sim->observer.sample_us * US;
			continue;
		}
		if (at > end_us * US)
			break;
		sim->now_ns = at;
		for (i = 0; i < sim->count; i++)
			if (sim->flows[i]->config.stop_us * US <= at)
				sim->flows[i]->stopped = 1;
		step(sim, f);
	}
	sim->now_ns = end_us * US;
}
