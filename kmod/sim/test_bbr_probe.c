/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Probes for bandwidth, ACK aggregation and ECN. */
#include "test_bbr.h"

/* wait_rounds 5: REFILL after five rounds, UP a round later. The short-term bounds are then cleared. */
static void a_probe_begins_after_its_wait(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3,wait_rounds=5", &a);
	u32 rounds = 0;

	round_ack(&conn, &a, 5);
	while (test_stat(&conn, &a, "mode") == CRUISE && rounds < 10) {
		round_ack(&conn, &a, 0);
		rounds++;
	}
	CHECK_EQ(test_stat(&conn, &a, "mode"), REFILL);
	CHECK(rounds >= 2 && rounds <= 5);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), CC_BBR_INFINITY);
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), UP);
}

/*
 * In UP, with a packet sent when 99 others were in flight that have been delivered: one lost of 100 is not more than 100 * 5 / 256 = 1. Two
 * more, noticed together, make 3 of 102, where the limit is 1. It was too high with the first of these two, at 100 + 1.
 */
static void loss_beyond_two_percent_ends_a_probe(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);

	ack(&conn, &a, 1);
	CHECK_EQ(test_stat(&conn, &a, "mode"), UP);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), CC_BBR_INFINITY);
	ack(&conn, &a, 2);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 101);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DOWN);
}

/*
 * Losses at 100, 150, 160 and 200 delivered packets, after 0, 3, 5 and 7 losses; 10 are lost so far. Those at 150 and 160 share a mark: of
 * its four losses, up to 160, seven elevenths, i.e. two, are later than 153.
 */
static void losses_are_counted_since_a_packet_was_sent(void)
{
	struct cc_bbr_state st = {.mode = CRUISE};

	cc_bbr_expire_loss_marks(&st, 50);
	cc_bbr_add_loss_mark(&st, 100, 0, 25);
	cc_bbr_add_loss_mark(&st, 150, 3, 25);
	cc_bbr_add_loss_mark(&st, 160, 5, 25); /* less than 25 later: counts with the last */
	cc_bbr_add_loss_mark(&st, 200, 7, 25);
	CHECK_EQ(cc_bbr_lost_since(&st, 60, 10), 10);
	CHECK_EQ(cc_bbr_lost_since(&st, 100, 10), 7);
	CHECK_EQ(cc_bbr_lost_since(&st, 149, 10), 7);
	CHECK_EQ(cc_bbr_lost_since(&st, 153, 10), 5);
	CHECK_EQ(cc_bbr_lost_since(&st, 160, 10), 3);
	CHECK_EQ(cc_bbr_lost_since(&st, 200, 10), 0);
	st.last_total_lost = 10;
	cc_bbr_expire_loss_marks(&st, 160);
	CHECK_EQ(cc_bbr_lost_since(&st, 160, 10), 3);
	CHECK_EQ(st.loss_marks_used, 1);
	cc_bbr_expire_loss_marks(&st, 200);
	CHECK_EQ(cc_bbr_lost_since(&st, 200, 10), 0);
	CHECK_EQ(st.loss_marks_used, 0);
}

/*
 * inflight_hi 150 limits the window. While the stack only paces, tcp_is_cwnd_limited() reports that the window limits (ssthresh is
 * infinite), but inflight_hi does not change. With 100 acknowledged packets per step, 300 then raise it by 3.
 */
static void inflight_hi_rises_only_if_the_window_is_full(void)
{
	static const char *const schemes[] = {"bbr2,wait_rounds=5", "bbr3,wait_rounds=5"};
	u32 i;

	for (i = 0; i < 2; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn = probing(schemes[i], &a);
		struct cc_bbr_state *st = state_of(&conn);

		st->inflight_hi = 150;
		st->bw_probe_up_cnt = 100;
		st->bw_probe_up_acks = 0;
		a.cwnd_pkts = 150;
		a.acked_pkts = 300;
		a.flags = CC_CWND_LIMITED;
		ack(&conn, &a, 0);
		CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 150);
		a.flags = CC_CWND_LIMITED | CC_CWND_FULL;
		ack(&conn, &a, 0);
		CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 153);
	}
}

/*
 * The window is 2 BDP plus what ACKs delivered beyond the bandwidth, not three bursts more: 202 with one ACK per packet. 40 packets in an
 * ACK make 242 for five to ten rounds. With a BDP of 3 packets, it is three bursts.
 */
static void the_window_has_room_for_aggregated_acks(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);
	u32 i;

	a.cwnd_pkts = 1000;
	round_ack(&conn, &a, 0);
	CHECK_EQ(a.cwnd_pkts, 202); /* twice 100.0005 is 201, and the ACK's own packet */
	a.acked_pkts = 40;
	a.cwnd_pkts = 1000;
	ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "extra_acked_pkts"), 41);
	CHECK_EQ(a.cwnd_pkts, 242);
	for (i = 0; i < 5; i++)
		round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "extra_acked_pkts"), 41);
	for (i = 0; i < 6; i++)
		round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "extra_acked_pkts"), 1);
	state_of(&conn)->min_rtt_us = 300;
	a.pacing_bytes_per_sec = 0;
	ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "bdp_pkts"), 4);
	CHECK_EQ(cc_bbr_tso_segs_goal(state_of(&conn), a.mss_bytes, 14335000, 3), 45); /* 65535 - 320 B: the limit */
	CHECK_EQ(a.cwnd_pkts, 135);
}

/* The next departure is 1 ms away: at 10^4 packets/s, ten packets fewer will be in the network; in UP, a burst more. */
static void in_flight_is_that_of_the_next_departure(void)
{
	struct cc_bbr_state st = {
		.max_bw_this_cycle = 167773, .bw_lo = CC_BBR_INFINITY, .bw_hi = CC_BBR_INFINITY, .inputs.pacing_gain = 256, .tso_segs_goal = 9,
	};
	struct cc_ack a = test_ack();

	a.edt_delay_us = 1000;
	CHECK_EQ(cc_bbr_packets_in_net_at_edt(&st, &a, 100), 90);
	st.inputs.pacing_gain = 320;
	CHECK_EQ(cc_bbr_packets_in_net_at_edt(&st, &a, 100), 99);
	CHECK_EQ(cc_bbr_packets_in_net_at_edt(&st, &a, 0), 0);
}

/*
 * The last probe was too high. This one reaches its inflight_hi before the ACK (91; after it, 80), so it stops. If the round after it has
 * no loss, the next probe begins at once.
 */
static void a_risky_probe_is_repeated_with_care(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);
	struct cc_bbr_state *st = state_of(&conn);

	st->flags |= CC_BBR_PREV_PROBE_TOO_HIGH;
	st->inflight_hi = 100; /* 91 and a burst of 11 packets */
	a.inflight_pkts = 80;
	ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DOWN);
	CHECK((st->flags & CC_BBR_STOPPED_RISKY_PROBE) != 0);
	CHECK((st->flags & CC_BBR_PREV_PROBE_TOO_HIGH) == 0);
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), REFILL);
	CHECK((st->flags & CC_BBR_STOPPED_RISKY_PROBE) == 0);
}

/*
 * Rounds in UP: the slope doubles only while the window limits at inflight_hi. In that case the bandwidth, which does not grow, does not
 * end the probe. Otherwise three rounds end it.
 */
static void the_slope_rises_at_the_bound(void)
{
	u32 full, i;

	for (full = 0; full < 2; full++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);
		struct cc_bbr_state *st = state_of(&conn);

		CHECK_EQ(st->bw_probe_up_rounds, 1);
		st->inflight_hi = 150;
		a.cwnd_pkts = 150;
		a.flags = CC_CWND_LIMITED | (full ? CC_CWND_FULL : 0);
		for (i = 0; i < 3; i++)
			round_ack(&conn, &a, 0);
		CHECK_EQ(st->bw_probe_up_rounds, full ? 4 : 1);
		CHECK_EQ(test_stat(&conn, &a, "mode") == UP, full);
	}
}

/*
 * ecn_alpha starts at 256 and loses a sixteenth in each of five unmarked rounds. A fully marked round in CRUISE makes it 171 + 16, and cuts
 * inflight_lo from cwnd by 85/256 of that: 200 * (256 - 62) / 256; with BBRv2, also bw_lo. On a path longer than ecn_max_rtt_us, and by
 * default, CE is ignored.
 */
static void ce_lowers_inflight_lo_where_it_is_enabled(void)
{
	static const char *const schemes[] = {"bbr3,ecn_enable=1,ecn_max_rtt_us=10000",
					      "bbr2,ecn_enable=1,ecn_max_rtt_us=10000",
					      "bbr3,ecn_enable=1,ecn_max_rtt_us=9999", "bbr3"};
	u32 i;

	for (i = 0; i < 4; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn;

		a.flags |= CC_ECN;
		conn = cruising(schemes[i], &a);
		CHECK_EQ(test_stat(&conn, &a, "ecn_alpha"), i > 1 ? 256 : 183); /* 240, 225, 210, 196, 183 */
		a.cwnd_pkts = 200;
		a.delivered_ce_pkts += 100;
		a.rate_delivered_ce_pkts = 100;
		round_ack(&conn, &a, 0);
		CHECK_EQ(test_stat(&conn, &a, "ecn_alpha"), i > 1 ? 256 : 187);
		CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), i > 1 ? CC_BBR_INFINITY : 151);
		CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), i == 1 ? 87785 : 115840);
	}
}

/* Whether ECN applies to a path is decided only once. */
static void ecn_eligibility_stays(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;

	a.flags |= CC_ECN;
	conn = cruising("bbr3,ecn_enable=1,ecn_max_rtt_us=10000", &a);
	state_of(&conn)->min_rtt_us = 20000;
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "ecn_alpha"), 171);
}

/* CE has ceased in a cycle without loss: BBRv3 probes at once, with half of inflight_hi in the first round (2^6 of 128). */
static void bbr3_probes_when_ce_ceases(void)
{
	static const char *const schemes[] = {"bbr2,ecn_enable=1,ecn_max_rtt_us=0", "bbr3,ecn_enable=1,ecn_max_rtt_us=0"};
	u32 i;

	for (i = 0; i < 2; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn;

		a.flags |= CC_ECN;
		conn = cruising(schemes[i], &a);
		state_of(&conn)->inflight_hi = 128;
		a.rate_delivered_ce_pkts = 1;
		round_ack(&conn, &a, 0);
		a.rate_delivered_ce_pkts = 0;
		round_ack(&conn, &a, 0);
		CHECK_EQ(test_stat(&conn, &a, "mode"), i ? REFILL : CRUISE);
		CHECK_EQ(state_of(&conn)->bw_probe_up_rounds, i ? 6 : 0);
	}
}

/* A sample with more than half of its packets marked ends a probe. With BBRv2, it also bounds the bandwidth. */
static void ce_ends_a_probe(void)
{
	static const char *const schemes[] = {"bbr2,wait_rounds=5,ecn_enable=1,ecn_max_rtt_us=0",
					      "bbr3,wait_rounds=5,ecn_enable=1,ecn_max_rtt_us=0,ecn_reprobe_pct=0"};
	u32 i;

	for (i = 0; i < 2; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn;

		a.flags |= CC_ECN;
		conn = probing(schemes[i], &a);
		state_of(&conn)->flags &= ~CC_BBR_OK_PROBE_SAMPLE;
		a.rate_delivered_ce_pkts = 51;
		ack(&conn, &a, 0);
		CHECK(test_stat(&conn, &a, "mode") == DOWN || test_stat(&conn, &a, "mode") == CRUISE);
		CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 100);
		CHECK_EQ(test_stat(&conn, &a, "bw_kbps") < 115840, !i);
	}
}

/* Two consecutive rounds with half of the packets marked end STARTUP, bounded by the BDP. */
static void ce_ends_startup(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	u32 i;

	a.flags |= CC_ECN;
	a.inflight_pkts = 300;
	conn = test_conn("bbr3,ecn_enable=1,ecn_max_rtt_us=0", &a);
	for (i = 0; i < 2; i++) {
		CHECK_EQ(test_stat(&conn, &a, "mode"), STARTUP);
		a.delivered_ce_pkts += 51;
		round_ack(&conn, &a, 0);
	}
	CHECK_EQ(test_stat(&conn, &a, "mode"), DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 101);
}

/* An application-limited probe does not show how much fits. */
static void an_application_limited_loss_keeps_inflight_hi(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);

	a.flags |= CC_APP_LIMITED;
	ack(&conn, &a, 50);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DOWN);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), CC_BBR_INFINITY);
}

/* Also in DRAIN: 100 in flight without loss are not too many. */
static void inflight_hi_rises_in_every_state(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);

	state_of(&conn)->mode = CC_BBR_DRAIN;
	state_of(&conn)->inflight_hi = 50;
	a.inflight_pkts = 300;
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 100);
}

/* Alone on 100 Mbit/s and 10 ms, a BDP of 125000 B: retransmissions per million packets, after STARTUP. */
static u64 retransmitted_ppm(const char *scheme, u32 queue_bytes)
{
	struct sim_path path = {100000000, 10000, queue_bytes, 0, 50, 1};
	struct sim *sim = sim_new(&path, NULL);
	struct sim_flow_config config = {.stop_us = 100000000};
	struct sim_flow_view before, after;
	char message[256];

	CHECK_EQ((u32)cc_conn_parse(&config.conn, scheme, message, sizeof(message)), 0);
	sim_add(sim, &config);
	sim_run(sim, 2000000);
	before = sim_view(sim, 0);
	sim_run(sim, 22000000);
	after = sim_view(sim, 0);
	sim_free(sim);
	CHECK(after.delivered_pkts - before.delivered_pkts > 20 * 8256 * 95 / 100);
	return (after.retransmitted_pkts - before.retransmitted_pkts) * 1000000 / (after.sent_pkts - before.sent_pkts);
}

/*
 * BBRv2 ends a probe at a queue of a quarter of a BDP: a buffer of half a BDP is enough. BBRv3 ends it after three rounds without more
 * bandwidth, with nearly a BDP, and repeats one that stopped at the last one's bound: with less, it loses 0.1 % of its packets. With bounds
 * that rise while pacing limits, and a window with three bursts more, it lost 0.5 to 0.7 %.
 */
static void alone_it_loses_little(void)
{
	CHECK_EQ(retransmitted_ppm("bbr2", 62500), 0);
	CHECK_EQ(retransmitted_ppm("bbr2", 125000), 0);
	CHECK(retransmitted_ppm("bbr3", 62500) < 2000);
	CHECK(retransmitted_ppm("bbr3", 125000) < 2000);
	CHECK_EQ(retransmitted_ppm("bbr3", 187500), 0);
}

int main(void)
{
	a_probe_begins_after_its_wait();
	loss_beyond_two_percent_ends_a_probe();
	losses_are_counted_since_a_packet_was_sent();
	inflight_hi_rises_only_if_the_window_is_full();
	the_window_has_room_for_aggregated_acks();
	in_flight_is_that_of_the_next_departure();
	a_risky_probe_is_repeated_with_care();
	the_slope_rises_at_the_bound();
	ce_lowers_inflight_lo_where_it_is_enabled();
	ecn_eligibility_stays();
	bbr3_probes_when_ce_ceases();
	ce_ends_a_probe();
	ce_ends_startup();
	an_application_limited_loss_keeps_inflight_hi();
	inflight_hi_rises_in_every_state();
	alone_it_loses_little();
	return test_done("bbr_probe");
}
