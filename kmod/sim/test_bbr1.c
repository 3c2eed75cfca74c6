/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "bbr.h"
#include "test.h"

/* 100 packets in 10 ms: 100 * 2^24 / 10000 = 167772 pkts/us << 24, a BDP of 100 packets. */
#define DELIVERED 100u
#define BW 167772u

static struct cc_ack start_ack(void)
{
	struct cc_ack a = test_ack();

	a.ssthresh_pkts = CC_INFINITE;
	a.delivered_pkts = 1000;
	a.rate_interval_us = 10000;
	a.rate_delivered_pkts = DELIVERED;
	a.acked_pkts = DELIVERED;
	a.inflight_pkts = 200;
	a.prior_inflight_pkts = 300;
	a.random = 0;
	return a;
}

/* Sends the ACK that ends a round, 10 ms later. The socket applies BBR's decision. */
static struct cc_out bbr_round(struct cc_conn *conn, struct cc_ack *a)
{
	struct cc_out out;

	a->now_us += 10000;
	a->rate_prior_delivered_pkts = a->delivered_pkts;
	a->delivered_pkts += a->acked_pkts;
	a->total_lost_pkts += a->lost_pkts;
	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	a->ssthresh_pkts = out.ssthresh_pkts;
	if (out.pacing_bytes_per_sec)
		a->pacing_bytes_per_sec = out.pacing_bytes_per_sec;
	return out;
}

static struct cc_conn begin(struct cc_ack *a)
{
	struct cc_conn conn;
	struct cc_out out;
	char message[256];

	*a = start_ack();
	if (cc_conn_parse(&conn, "bbr", message, sizeof(message)))
		exit(1);
	cc_call_init(&conn, a, &out);
	a->pacing_bytes_per_sec = out.pacing_bytes_per_sec;
	return conn;
}

/* The pipe is full after four rounds with the same bandwidth: one sets it, three do not exceed it. */
static struct cc_conn full(struct cc_ack *a)
{
	struct cc_conn conn = begin(a);
	u32 i;

	for (i = 0; i < 4; i++)
		bbr_round(&conn, a);
	return conn;
}

/* In PROBE_BW's first phase: 110 packets in flight are few enough, and random number 0 begins with 5/4. */
static struct cc_conn probing(struct cc_ack *a)
{
	struct cc_conn conn = full(a);

	a->inflight_pkts = 100;
	bbr_round(&conn, a);
	return conn;
}

/*
 * 20 packets in 10 ms are 33554; * 1448 B * 739 / 256 = 140254671, * 990000 >> 24 = 8276232 bytes/s.
 * If there is no RTT, 1 ms is assumed: 335544, 1402550889, 82762735.
 */
static void it_begins_at_its_window_per_rtt(void)
{
	struct cc_ack a;
	struct cc_conn conn = begin(&a);
	struct cc_out out;

	CHECK_EQ(a.pacing_bytes_per_sec, 33554ull * 1448 * 739 / 256 * 990000 >> 24);
	a.srtt_us = 0;
	cc_call_init(&conn, &a, &out);
	CHECK_EQ(out.pacing_bytes_per_sec, 335544ull * 1448 * 739 / 256 * 990000 >> 24);
	CHECK_EQ(out.ssthresh_pkts, CC_INFINITE);
	CHECK_EQ(cc_conn_wants(&conn), CC_OWNS_CWND | CC_WANTS_PACING | CC_WANTS_BURSTS | CC_WANTS_STORAGE);
}

/* 41.4 MB/s of STARTUP are 27 segments per ms: ssthresh is a BDP of 100, and 3 * 27, rounded up to 182. */
static void startup_ends_after_three_rounds_without_growth(void)
{
	struct cc_ack a;
	struct cc_conn conn = begin(&a);
	u32 i;

	for (i = 0; i < 3; i++) {
		bbr_round(&conn, &a);
		CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_STARTUP);
		CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 739);
	}
	CHECK_EQ(a.pacing_bytes_per_sec, (u64)BW * 1448 * 739 / 256 * 990000 >> 24);
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 88);
	CHECK_EQ(a.ssthresh_pkts, 182);
	CHECK_EQ(test_stat(&conn, &a, "bdp_pkts"), 100);
}

/* A quarter more bandwidth (125 packets) in the third round, and three more rounds without. */
static void growth_by_a_quarter_keeps_startup(void)
{
	struct cc_ack a;
	struct cc_conn conn = begin(&a);
	u32 i;

	for (i = 0; i < 6; i++) {
		a.rate_delivered_pkts = i < 2 ? 100 : 126;
		CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_STARTUP);
		bbr_round(&conn, &a);
	}
	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_DRAIN);
}

/* Drained with 100 in flight. Phase 5/4 lasts for a min RTT and until something is lost, 3/4 until a BDP is in flight. */
static void probe_bw_cycles(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);

	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_PROBE_BW);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 320);
	CHECK_EQ(test_stat(&conn, &a, "cwnd_gain"), 512);
	CHECK_EQ(a.pacing_bytes_per_sec, (u64)BW * 1448 * 320 / 256 * 990000 >> 24);
	a.now_us++;
	a.prior_inflight_pkts = 120; /* less than 5/4 of the BDP and bursts */
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 320);
	a.lost_pkts = 1;
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 192);
	a.lost_pkts = 0;
	a.prior_inflight_pkts = 100;
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 256);
}

/* A random number of 2^32 - 1 is 6 of 7: phase 7 - 6 + 1 = 2. */
static void the_first_phase_is_random_but_never_three_quarters(void)
{
	struct cc_ack a;
	struct cc_conn conn = full(&a);

	a.inflight_pkts = 100;
	a.random = 0xffffffffu;
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 256);
}

/*
 * Two BDP are 200. An ACK of 100 packets is 100 in excess at its time, and 1 because 99.99 are expected per 10 ms.
 * 5/4 of 14.3 MB/s are 12 segments in 1 ms: 3 * 12, even, and 2 for the first phase.
 */
static void the_window_is_two_bdp_and_bursts(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	u32 i;

	for (i = 0; i < 3; i++) {
		a.prior_inflight_pkts = 120;
		bbr_round(&conn, &a);
	}
	CHECK_EQ(test_stat(&conn, &a, "extra_acked_pkts"), 101);
	CHECK_EQ(a.cwnd_pkts, 338 + 2);
}

/* The maximum of ten rounds is forgotten at the eleventh lower sample. */
static void bandwidth_is_the_maximum_of_ten_rounds(void)
{
	struct cc_bbr1_state st = {.rtt_cnt = 1};
	u32 i;

	cc_bbr1_filter_bw(&st, 100);
	for (i = 2; i <= 11; i++) {
		st.rtt_cnt = i;
		cc_bbr1_filter_bw(&st, 50 + i);
		CHECK_EQ(cc_bbr1_max_bw(&st), 100);
	}
	st.rtt_cnt = 12;
	cc_bbr1_filter_bw(&st, 10);
	CHECK_EQ(cc_bbr1_max_bw(&st), 61);
}

/* 50 packets in 10 ms are not a sample for an application-limited flow; 101 are. */
static void application_limited_samples_only_raise_bandwidth(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	u32 i, kbps = test_stat(&conn, &a, "bw_kbps");

	/* 167772 * 1448 B * 8000 >> 24 */
	CHECK_EQ(kbps, 115839);
	a.flags |= CC_APP_LIMITED;
	a.rate_delivered_pkts = 50;
	for (i = 0; i < 12; i++)
		bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), kbps);
	a.rate_delivered_pkts = 101;
	bbr_round(&conn, &a);
	CHECK(test_stat(&conn, &a, "bw_kbps") > kbps);
}

/* After 10 s without a lower RTT: four packets for 200 ms and a round. An equal RTT does not postpone it. Then cwnd is restored. */
static void probe_rtt_empties_the_pipe(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	struct cc_out out;
	u32 rounds = 0;

	a.now_us = 5000000 + 10000000 - 10000;
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_PROBE_BW);
	a.now_us += 1000;
	bbr_round(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_PROBE_RTT);
	CHECK_EQ(a.cwnd_pkts, 4);
	/* What was sent meanwhile does not lower the bandwidth. */
	a.inflight_pkts = 4;
	a.prior_inflight_pkts = 4;
	a.rate_delivered_pkts = 4;
	a.acked_pkts = 4;
	while (test_stat(&conn, &a, "mode") == CC_BBR1_PROBE_RTT && rounds < 100) {
		bbr_round(&conn, &a);
		rounds++;
	}
	CHECK_EQ(rounds, 22); /* one to see four in flight, 20 for 200 ms, and one because it must be later */
	CHECK_EQ(test_stat(&conn, &a, "mode"), CC_BBR1_PROBE_BW);
	CHECK(a.cwnd_pkts > 200); /* two BDP; the ACK excess is forgotten */
	CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), 115839);
	/* Then idle: PROBE_RTT still counts as a limit by the application. */
	a.pacing_bytes_per_sec = 1;
	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	CHECK_EQ(out.pacing_bytes_per_sec, (u64)BW * 1448 * 990000 >> 24);
}

/*
 * 3 lost, 2 acked, 90 in flight: packets are conserved in the first round, then the window grows by what is acked. Afterwards, the previous
 * window is restored, up to two BDP and bursts.
 */
static void recovery_conserves_packets_for_a_round(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	struct cc_out out;

	CHECK_EQ(cc_call_loss(&conn, &a), a.ssthresh_pkts);
	a.ca_state = CC_RECOVERY;
	a.acked_pkts = 2;
	a.lost_pkts = 3;
	a.inflight_pkts = 90;
	CHECK_EQ(bbr_round(&conn, &a).cwnd_pkts, 92);
	a.lost_pkts = 0;
	a.inflight_pkts = 89;
	a.rate_prior_delivered_pkts = a.delivered_pkts - 50;
	a.delivered_pkts += 2;
	cc_call_ack(&conn, &a, &out);
	CHECK_EQ(out.cwnd_pkts, 92);
	CHECK_EQ(bbr_round(&conn, &a).cwnd_pkts, 94);
	a.ca_state = CC_OPEN;
	CHECK(bbr_round(&conn, &a).cwnd_pkts > 200);
}

/* A timeout leaves one packet. Afterwards, the previous window is restored, up to two BDP and bursts. */
static void a_timeout_saves_the_window(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	struct cc_out out;

	cc_call_loss(&conn, &a);
	cc_call_event(&conn, CC_EVENT_RTO, &a, &out);
	cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
	a.ca_state = CC_LOSS;
	a.cwnd_pkts = 1;
	a.acked_pkts = 1;
	CHECK_EQ(bbr_round(&conn, &a).cwnd_pkts, 4);
	a.ca_state = CC_OPEN;
	CHECK(bbr_round(&conn, &a).cwnd_pkts > 200);
	a.cwnd_pkts = 1;
	CHECK_EQ(cc_call_undo(&conn, &a), 2);
}

/*
 * A policer: 25 of 100 packets lost per round, more than 50/256. An interval has four rounds after the round whose loss began it. The
 * second with the same rate makes it the bandwidth, for 48 rounds.
 */
static void a_policer_sets_the_bandwidth(void)
{
	struct cc_ack a;
	struct cc_conn conn = probing(&a);
	u32 rounds = 0;

	a.lost_pkts = 25;
	while (!test_stat(&conn, &a, "policed") && rounds < 100) {
		bbr_round(&conn, &a);
		rounds++;
	}
	CHECK_EQ(rounds, 8);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 256);
	CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), 115839);
	rounds = 0;
	while (test_stat(&conn, &a, "policed") && rounds < 100) {
		bbr_round(&conn, &a);
		rounds++;
	}
	CHECK_EQ(rounds, 48);
}

/* Bursts have two segments from 1.2 Mbit/s on. */
static void slow_flows_send_single_segments(void)
{
	struct cc_ack a;
	struct cc_conn conn = begin(&a);

	CHECK_EQ(cc_conn_bursts(&conn, 149999, 1500).min_tso_segs, 1);
	CHECK_EQ(cc_conn_bursts(&conn, 150000, 1500).min_tso_segs, 2);
	CHECK_EQ(cc_conn_bursts(&conn, 150000, 1500).pacing_shift, 10);
}

int main(void)
{
	it_begins_at_its_window_per_rtt();
	startup_ends_after_three_rounds_without_growth();
	growth_by_a_quarter_keeps_startup();
	probe_bw_cycles();
	the_first_phase_is_random_but_never_three_quarters();
	the_window_is_two_bdp_and_bursts();
	bandwidth_is_the_maximum_of_ten_rounds();
	application_limited_samples_only_raise_bandwidth();
	probe_rtt_empties_the_pipe();
	recovery_conserves_packets_for_a_round();
	a_timeout_saves_the_window();
	a_policer_sets_the_bandwidth();
	slow_flows_send_single_segments();
	return test_done("bbr1");
}
