/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Internal interface of ccsim: sim.c has the senders and the clock; path.c has the queue, the wire and the receivers. */
#ifndef CC_SIM_PATH_H
#define CC_SIM_PATH_H

#include "sim.h"

#define NEVER (~(u64)0)
#define US 1000ull
#define MASK (SIM_WINDOW - 1)
#define QUEUE_SLOTS 65536u
#define QUICK_ACKS 16u /* packets acknowledged one by one at the start of a connection, as in Linux */
#define DELACK_US 40000u
#define ACK_PACKETS 2u /* maximum per ACK */

enum packet_state { FREE, OUT, DELIVERED, LOST };

/* One transmission, in order of sending. */
struct packet {
	u64 sent_ns, first_sent_ns, delivered_ns; /* the last two: of the rate sample */
	u32 seq;				  /* in packets */
	u32 delivered, delivered_ce;		  /* flow's counts when sent */
	u8 state, again;
};

/* An ACK for one or two packets that arrived. */
struct ack_in_flight {
	u64 at_ns;
	u64 index[ACK_PACKETS];
	u8 count, ce; /* the receiver sends an ACK when CE changes, so CE is that of all its packets */
};

struct receiver {
	u8 held[SIM_WINDOW]; /* out of order */
	u32 nxt, held_count; /* in packets */
	u32 quick;
	u64 pending; /* index of a packet that awaits its ACK; NEVER if none */
	u64 delack_at_ns;
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
	struct receiver receiver;
	struct ack_in_flight acks[SIM_WINDOW];
	u32 ack_head, ack_tail;
	u64 last_ack_at_ns;
	u64 rto_at_ns, send_at_ns;
	u64 edt_ns, wrote_ns; /* earliest departure time of the next burst; time of the last */
	u32 backoff;
	u32 inflight, cwnd, ssthresh, prior_cwnd, high;
	enum cc_ca_state state;
	u32 prr_delivered, prr_out;
	u32 srtt8_us, mdev4_us, rtt_min_us;
	u64 delivered_ns, first_sent_ns;
	u64 pacing;
	u32 is_cwnd_limited, max_packets_out, cwnd_usage; /* as tcp_cwnd_validate() keeps them */
	u8 started, stopped;
	u64 delivered, delivered_ce, lost, sent_count, again_count, marked, dropped;
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

void path_enqueue(struct sim *sim, u32 flow, u64 index);
void path_wire_done(struct sim *sim);
void path_delayed_ack(struct sim *sim, struct flow *f);

#endif
