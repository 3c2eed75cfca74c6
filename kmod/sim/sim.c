/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "path.h"

#include <stdlib.h>
#include <string.h>

#define INITIAL_CWND 10u
#define RTO_MIN_US 200000u
#define DUPTHRESH 3u
#define UNPACED_PKTS 10u	  /* the stack does not pace the first packets */
#define GSO_BYTES 65536u
#define GSO_HEADERS 320u

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
	f->receiver.quick = QUICK_ACKS;
	f->receiver.pending = NEVER;
	f->receiver.delack_at_ns = NEVER;
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

/* tcp_is_cwnd_limited() */
static int cwnd_limited(const struct flow *f)
{
	return f->is_cwnd_limited || (f->cwnd < f->ssthresh && f->cwnd < 2 * f->max_packets_out);
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
		.total_lost_pkts = (u32)f->lost,
		.edt_delay_us = f->edt_ns > sim->now_ns ? (u32)((f->edt_ns - sim->now_ns) / US) : 0,
		.rate_prior_delivered_pkts = (u32)f->delivered,
		.mss_bytes = SIM_MSS,
		.mtu_bytes = SIM_MTU,
		.random = cc_random(&sim->seed),
		.ca_state = f->state,
		.flags = (cwnd_limited(f) ? CC_CWND_LIMITED : 0) | (f->is_cwnd_limited ? CC_CWND_FULL : 0) |
			 (ecn ? CC_ECN : 0),
	};
}

static u32 index_of(const struct sim *sim, const struct flow *f)
{
	u32 i;

	for (i = 0; i < sim->count; i++)
		if (sim->flows[i] == f)
			break;
	return i;
}

static void observe_round(struct sim *sim, struct flow *f, const struct cc_ack *a, u32 flags)
{
	if ((flags & (CC_OUT_ROUND | CC_OUT_STATE)) && sim->observer.round)
		sim->observer.round(sim->observer.context, a->now_us, index_of(sim, f), f->conn, a);
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
	a.cwnd_pkts = out.cwnd_pkts;
	observe_round(sim, f, &a, out.flags);
}

static void enter(struct sim *sim, struct flow *f, enum cc_ca_state state)
{
	call_event(sim, f, (u32)state); /* states and events share their first values */
	f->state = state;
}

/* Recovery or CWR: PRR reduces the window towards the core's answer. */
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

static void transmit(struct sim *sim, struct flow *f, u32 flow, u32 seq, int again)
{
	struct packet *p = &f->sent[f->next & MASK];

	if (seq == f->una && !again) { /* nothing is outstanding */
		f->first_sent_ns = sim->now_ns;
		f->delivered_ns = sim->now_ns;
	}
	*p = (struct packet){
		.sent_ns = sim->now_ns,
		.first_sent_ns = f->first_sent_ns,
		.delivered_ns = f->delivered_ns,
		.seq = seq,
		.delivered = (u32)f->delivered,
		.delivered_ce = (u32)f->delivered_ce,
		.state = OUT,
		.again = (u8)again,
	};
	f->inflight++;
	f->sent_count++;
	f->again_count += (u32)again;
	f->prr_out++;
	path_enqueue(sim, flow, f->next);
	f->next++;
	if (f->rto_at_ns == NEVER)
		f->rto_at_ns = sim->now_ns + RTO_MIN_US * US * 5;
}

/* Segments per burst: 2^-pacing_shift s at the pacing rate, more on short paths (tcp_tso_autosize). */
static u32 burst_segs(const struct flow *f)
{
	u64 rate = f->pacing, bytes;
	struct cc_bursts bursts;

	if (!rate) /* the stack's own rate, which only sizes bursts */
		rate = (u64)f->cwnd * SIM_MSS * (f->cwnd < f->ssthresh / 2 ? 2000000 : 1200000) /
		       cc_max(f->srtt8_us >> 3, 1);
	bursts = cc_conn_bursts(f->conn, rate, SIM_MTU);
	bytes = rate >> (bursts.pacing_shift & 31);
	if (f->rtt_min_us >> 9 < 32)
		bytes += GSO_BYTES >> (f->rtt_min_us >> 9);
	return cc_max((u32)(bytes < GSO_BYTES - 1 - GSO_HEADERS ? bytes : GSO_BYTES - 1 - GSO_HEADERS) / SIM_MSS,
		      bursts.min_tso_segs);
}

/* Whether to wait for more window instead of sending a small burst (tcp_tso_should_defer). */
static int defers(const struct sim *sim, const struct flow *f, u32 room, u32 goal)
{
	const struct packet *oldest = &f->sent[f->head & MASK];

	if (room >= goal || f->state >= CC_RECOVERY || room >= cc_max(f->cwnd / 3, 1) || f->stopped)
		return 0;
	if (sim->now_ns - f->wrote_ns > 1000 * US || f->head == f->next)
		return 0;
	return sim->now_ns - oldest->sent_ns >= (f->srtt8_us >> 4) * US;
}

/* Sends the next lost or new packet. Returns 0 if there is none. */
static int send_one(struct sim *sim, struct flow *f, u32 flow)
{
	while (f->lost_head != f->lost_tail) {
		u32 seq = f->lost_queue[f->lost_head++ & MASK];

		if (seq - f->una < SIM_WINDOW && !f->received[seq & MASK]) {
			transmit(sim, f, flow, seq, 1);
			return 1;
		}
	}
	if (f->stopped || f->nxt - f->una >= SIM_WINDOW - 1 || f->next - f->head >= SIM_WINDOW)
		return 0;
	transmit(sim, f, flow, f->nxt, 0);
	f->nxt++;
	return 1;
}

static void validate_cwnd(struct flow *f, u32 is_cwnd_limited)
{
	u32 packets_out = f->nxt - f->una;

	if ((s32)(f->una - f->cwnd_usage) < 0 && !is_cwnd_limited &&
	    (f->is_cwnd_limited || packets_out <= f->max_packets_out))
		return;
	f->is_cwnd_limited = is_cwnd_limited;
	f->max_packets_out = packets_out;
	f->cwnd_usage = f->nxt;
}

static void try_send(struct sim *sim, struct flow *f)
{
	u32 flow = index_of(sim, f), sent = 0, limited = 0;

	f->send_at_ns = NEVER;
	while (f->inflight < f->cwnd) {
		u32 goal = burst_segs(f), room = cc_min(f->cwnd - f->inflight, cc_max(f->cwnd >> 1, 1)), burst = 0;

		if (f->pacing && f->edt_ns > sim->now_ns) {
			f->send_at_ns = f->edt_ns;
			break;
		}
		if (f->lost_head == f->lost_tail && defers(sim, f, room, goal)) {
			limited = 1;
			break;
		}
		while (burst < cc_min(goal, room) && f->next - f->head < SIM_WINDOW && send_one(sim, f, flow))
			burst++;
		if (!burst)
			break;
		sent += burst;
		f->wrote_ns = sim->now_ns;
		if (f->pacing && f->sent_count >= UNPACED_PKTS)
			f->edt_ns = sim->now_ns + burst * SIM_MSS * 1000000000ull / f->pacing;
	}
	limited |= f->inflight >= f->cwnd;
	if (sent || limited)
		validate_cwnd(f, limited);
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

/* ca_rtt_us is of the newest packet of the ACK, rtt_us of the oldest. */
static void measure(struct flow *f, u32 rtt_us, u32 ca_rtt_us)
{
	u32 deviation;

	f->rtt_min_us = cc_min(f->rtt_min_us, ca_rtt_us);
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
	f->lost++;
	f->lost_queue[f->lost_tail++ & MASK] = p->seq;
}

/* Like RACK without reordering: packets sent at least three before a delivered one are lost, in recovery at least one. */
static void find_losses(struct flow *f, u64 index)
{
	while (f->head < f->next) {
		struct packet *p = &f->sent[f->head & MASK];

		if (p->state == OUT) {
			if (f->head + (f->state >= CC_RECOVERY ? 1 : DUPTHRESH) > index)
				break;
			lose(f, p);
		}
		f->head++;
	}
}

/* RFC 9937 with the stack's safe reduction bound. */
static void prr(struct flow *f, u32 acked)
{
	u32 send, grant;

	f->prr_delivered += acked;
	if (f->inflight > f->ssthresh) {
		u64 share = ((u64)f->ssthresh * f->prr_delivered + f->prior_cwnd - 1) /
			    cc_max(f->prior_cwnd, 1);

		send = cc_saturating_sub((u32)share, f->prr_out);
	} else {
		grant = cc_max(cc_saturating_sub(f->prr_delivered, f->prr_out), acked) + (f->lost_now ? 0 : 1);
		send = cc_min(f->ssthresh - f->inflight, grant);
	}
	send = cc_max(send, f->prr_out ? 0 : 1);
	f->cwnd = f->inflight + send;
}

/* p is the packet of this ACK that was sent last. A sample shorter than an RTT does not count. */
static void rate_sample(struct sim *sim, struct flow *f, const struct packet *p, struct cc_ack *a)
{
	u64 sending_us = (p->sent_ns - p->first_sent_ns) / US, acking_us = (sim->now_ns - p->delivered_ns) / US;
	u64 interval_us = sending_us > acking_us ? sending_us : acking_us;

	f->first_sent_ns = p->sent_ns;
	a->rate_prior_delivered_pkts = p->delivered;
	if (interval_us < f->rtt_min_us)
		return;
	a->rate_delivered_pkts = (u32)f->delivered - p->delivered;
	a->rate_delivered_ce_pkts = (u32)f->delivered_ce - p->delivered_ce;
	a->rate_interval_us = (u32)interval_us;
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

/* Properties of the packets that an ACK acknowledges. */
struct acked {
	struct packet last; /* sent last among those newly delivered */
	u32 fresh;	    /* newly delivered */
	u32 rtt_us, ca_rtt_us;
};

static struct acked deliver(struct sim *sim, struct flow *f, const struct ack_in_flight *ack)
{
	struct acked acked = {.fresh = 0};
	u32 i;

	for (i = 0; i < ack->count; i++) {
		struct packet *p = &f->sent[ack->index[i] & MASK];

		if (p->state == OUT) {
			p->state = DELIVERED;
			f->inflight--;
		}
		if (!p->again) {
			acked.ca_rtt_us = (u32)((sim->now_ns - p->sent_ns) / US);
			acked.rtt_us = acked.rtt_us ? acked.rtt_us : acked.ca_rtt_us;
		}
		if (p->seq - f->una >= SIM_WINDOW || f->received[p->seq & MASK])
			continue;
		f->received[p->seq & MASK] = 1;
		f->delivered++;
		f->delivered_ce += ack->ce;
		acked.last = *p;
		acked.fresh++;
	}
	if (acked.fresh)
		f->delivered_ns = sim->now_ns;
	if (acked.rtt_us)
		measure(f, acked.rtt_us, acked.ca_rtt_us);
	return acked;
}

static void on_ack(struct sim *sim, struct flow *f)
{
	struct ack_in_flight ack = f->acks[f->ack_head];
	u32 prior_inflight = f->inflight, old_una = f->una;
	struct acked acked;
	struct cc_ack a;
	struct cc_out out;

	f->ack_head = (f->ack_head + 1) & MASK;
	f->lost_now = 0;
	acked = deliver(sim, f, &ack);
	while (f->una != f->nxt && f->received[f->una & MASK])
		f->received[f->una++ & MASK] = 0;
	find_losses(f, ack.index[ack.count - 1]);
	if (f->una != old_una)
		f->backoff = 0;
	arm_rto(sim, f);
	change_state(sim, f, ack.ce);

	a = view_of(sim, f);
	a.rtt_us = acked.ca_rtt_us;
	a.prior_inflight_pkts = prior_inflight;
	a.acked_pkts = acked.fresh;
	a.lost_pkts = f->lost_now;
	if (acked.fresh) {
		rate_sample(sim, f, &acked.last, &a);
		observe_round(sim, f, &a, cc_call_sample(f->conn, &a));
	}
	if (!(f->conn->ops->wants & CC_OWNS_CWND)) {
		if (f->state == CC_CWR || f->state == CC_RECOVERY) {
			prr(f, acked.fresh);
			try_send(sim, f);
			return;
		}
		if (f->una == old_una)
			goto send;
	}
	cc_call_ack(f->conn, &a, &out);
	apply(f, &out);
	a.cwnd_pkts = out.cwnd_pkts;
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
		at = f->receiver.delack_at_ns < at ? f->receiver.delack_at_ns : at;
		if (f->ack_head != f->ack_tail && f->acks[f->ack_head].at_ns < at)
			at = f->acks[f->ack_head].at_ns;
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
		path_wire_done(sim);
	} else if (f->receiver.delack_at_ns <= sim->now_ns) {
		path_delayed_ack(sim, f);
	} else if (f->ack_head != f->ack_tail && f->acks[f->ack_head].at_ns <= sim->now_ns) {
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
