/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "path.h"

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

void path_enqueue(struct sim *sim, u32 flow, u64 index)
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

/* The whole delay of the path is between the decision to send the ACK and its arrival. The order of events is the same. */
static void send_ack(struct sim *sim, struct flow *f, const struct ack_in_flight *ack)
{
	u64 at_ns = sim->now_ns + (sim->path.delay_us + f->config.extra_delay_us) * US;

	if (sim->path.jitter_us)
		at_ns += cc_random(&sim->seed) % (sim->path.jitter_us * US);
	if (at_ns <= f->last_ack_at_ns)
		at_ns = f->last_ack_at_ns + 1;
	f->last_ack_at_ns = at_ns;
	f->acks[f->ack_tail] = *ack;
	f->acks[f->ack_tail].at_ns = at_ns;
	f->ack_tail = (f->ack_tail + 1) & MASK;
}

void path_delayed_ack(struct sim *sim, struct flow *f)
{
	struct receiver *r = &f->receiver;

	if (r->pending != NEVER)
		send_ack(sim, f, &(struct ack_in_flight){.index = {r->pending}, .count = 1, .ce = r->ce});
	r->pending = NEVER;
	r->delack_at_ns = NEVER;
}

/* Whether the packet is the next in order and none is missing. */
static int in_order(struct receiver *r, u32 seq)
{
	int gap = r->held_count || seq != r->nxt;

	if (seq - r->nxt >= SIM_WINDOW || r->held[seq & MASK])
		return 0; /* a duplicate */
	r->held[seq & MASK] = 1;
	r->held_count++;
	while (r->held[r->nxt & MASK]) {
		r->held[r->nxt++ & MASK] = 0;
		r->held_count--;
	}
	return !gap;
}

/* As in Linux: acknowledges every second packet, and at once in quick-ACK mode, while packets are missing, and when CE changes. */
static void receive(struct sim *sim, struct flow *f, u64 index, u8 ce)
{
	struct receiver *r = &f->receiver;
	struct ack_in_flight ack = {.index = {index}, .count = 1, .ce = ce};
	int now = !in_order(r, f->sent[index & MASK].seq) || ce != r->ce;

	if (r->quick) {
		r->quick--;
		now = 1;
	}
	if (ce != r->ce)
		path_delayed_ack(sim, f);
	r->ce = ce;
	if (!now && r->pending == NEVER) {
		r->pending = index;
		r->delack_at_ns = sim->now_ns + DELACK_US * US;
		return;
	}
	if (r->pending != NEVER)
		ack = (struct ack_in_flight){.index = {r->pending, index}, .count = 2, .ce = ce};
	r->pending = NEVER;
	r->delack_at_ns = NEVER;
	send_ack(sim, f, &ack);
}

void path_wire_done(struct sim *sim)
{
	receive(sim, sim->flows[sim->wire.flow], sim->wire.index, sim->wire_ce);
	sim->sent_at_ns = NEVER;
	if (sim->queue_head != sim->queue_tail)
		start_wire(sim);
}
