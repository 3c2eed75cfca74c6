/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A deterministic one-bottleneck simulator in integer time.
 *
 *   senders -> [FIFO, limit in bytes, step marking] -> rate -> delay -> receivers -> acks -> senders
 *
 * Greedy senders with TSO bursts, delayed ACKs, RACK's loss detection (three later packets delivered, in recovery one), PRR, RTO,
 * delivery-rate samples, pacing, and the stack's test of whether cwnd limits: the parts of Linux around a congestion control. No reordering
 * on the path, no ACK compression, no merging of segments in the receiver. The same configuration gives the same packets everywhere.
 *
 * Units: ns internally, us in core/cc.h; bytes on the wire.
 */
#ifndef CC_SIM_H
#define CC_SIM_H

#include "host.h"

#define SIM_MSS 1448u	/* payload bytes per packet */
#define SIM_MTU 1500u	/* with the headers of IP and TCP */
#define SIM_FRAME 1514u /* bytes on the wire per packet */
#define SIM_FLOWS_MAX 64
#define SIM_WINDOW 16384u /* maximum packets in flight per flow */

struct sim_path {
	u64 rate_bps;
	u32 delay_us;	 /* bottleneck to receiver and back, without queue and serialisation */
	u32 queue_bytes; /* limit of the FIFO, without the packet being sent */
	u32 mark_us;	 /* sojourn time above which ECN packets get CE; 0: never */
	u32 jitter_us;	 /* maximum delay added to an ACK; order is kept */
	u64 seed;
};

struct sim_flow_config {
	struct cc_conn conn;
	u64 start_us, stop_us;
	u32 extra_delay_us; /* in addition to the path's */
};

/* A flow's state for observers. */
struct sim_flow_view {
	const struct cc_conn *conn;
	u64 delivered_pkts, sent_pkts, retransmitted_pkts, marked_pkts, dropped_pkts;
	u32 timeouts, recoveries;
	u32 cwnd_pkts, ssthresh_pkts, srtt_us, inflight_pkts, ca_state;
	u64 pacing_bytes_per_sec;
};

struct sim;

/* Both may be null. sample runs every sample_us; round runs when a core returns CC_OUT_ROUND or CC_OUT_STATE. */
struct sim_observer {
	void *context;
	u32 sample_us;
	void (*sample)(void *context, u64 now_us, struct sim *sim);
	void (*round)(void *context, u64 now_us, u32 flow, const struct cc_conn *conn,
		      const struct cc_ack *a);
};

struct sim *sim_new(const struct sim_path *path, const struct sim_observer *observer);
void sim_free(struct sim *sim);

/* Returns the index of the new flow. */
u32 sim_add(struct sim *sim, const struct sim_flow_config *config);
u32 sim_flow_count(const struct sim *sim);
struct sim_flow_view sim_view(const struct sim *sim, u32 flow);
u32 sim_queue_bytes(const struct sim *sim);

/* Runs until end_us of simulated time. */
void sim_run(struct sim *sim, u64 end_us);

#endif
