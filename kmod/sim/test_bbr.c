/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "../core/bbr2.h"
#include "../core/bbr3.h"
#include "sim.h"
#include "test.h"

enum { STARTUP, DRAIN, DOWN, CRUISE, REFILL, UP, PROBE_RTT };

/* One packet per 100 us is 2^24 / 100 = 167772; times 10 ms: 99.99, rounded up to 100 packets. */
static void the_bdp_is_bandwidth_times_delay(void)
{
	struct cc_bbr_state st = {.min_rtt_us = 10000, .mode = CRUISE};
	u32 bw = (1u << CC_BBR_BW) / 100;

	CHECK_EQ(cc_bbr_bdp(&st, bw, 1000), 100);
	CHECK_EQ(cc_bbr_bdp(&st, bw, 2000), 200);
	CHECK_EQ(cc_bbr_bdp(&st, bw, 500), 50);
	CHECK_EQ(cc_bbr_bdp(&st, 0, 1000), 10); /* nothing known: the initial window */
	/* 10^4 packets/s of 1448 B, less the truncation of bw: 14 479 938; in kbit/s 115 839 */
	CHECK(cc_bbr_bytes_per_sec(bw, 1448, 1000) > 14479000);
	CHECK(cc_bbr_bytes_per_sec(bw, 1448, 1000) <= 14480000);
	CHECK_EQ(cc_bbr_kbps(bw, 1448), 115839);
}

static void gains_follow_the_mode(void)
{
	struct cc_bbr_state st = {.mode = STARTUP};
	const struct cc_bbr_params *two = cc_bbr2_of(&cc_bbr2_defaults);
	const struct cc_bbr_params *three = cc_bbr3_of(&cc_bbr3_defaults);

	CHECK_EQ(cc_bbr_pacing_gain(&st, two), 2885);
	CHECK_EQ(cc_bbr_pacing_gain(&st, three), 2773);
	CHECK_EQ(cc_bbr_cwnd_gain(&st, two), 2885);
	CHECK_EQ(cc_bbr_cwnd_gain(&st, three), 2000);
	st.mode = DOWN;
	CHECK_EQ(cc_bbr_pacing_gain(&st, two), 750);
	CHECK_EQ(cc_bbr_pacing_gain(&st, three), 910);
	st.mode = UP;
	CHECK_EQ(cc_bbr_pacing_gain(&st, two), 1250);
	CHECK_EQ(cc_bbr_cwnd_gain(&st, three), 2250);
	st.mode = PROBE_RTT;
	CHECK_EQ(cc_bbr_cwnd_gain(&st, three), 1000);
}

/* One ACK that ends a round of 100 packets in 10 ms: bw = 10^4 packets/s. */
static struct cc_out round_ack(struct cc_conn *conn, struct cc_ack *a, u32 lost)
{
	struct cc_out out;

	a->now_us += 10000;
	a->rate_prior_delivered_pkts = a->delivered_pkts;
	a->delivered_pkts += 100;
	a->rate_delivered_pkts = 100;
	a->rate_interval_us = 10000;
	a->acked_pkts = 1;
	a->lost_pkts = lost;
	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	if (out.pacing_bytes_per_sec)
		a->pacing_bytes_per_sec = out.pacing_bytes_per_sec;
	return out;
}

/*
 * The bandwidth of 10^4 packets/s is seen in the first round (it grew from nothing) and then three rounds do
 * not grow by 25 %: the fifth ACK still is STARTUP's, with full pipe, and moves on to DRAIN.
 */
static void startup_ends_after_three_rounds_without_growth(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	u32 i;

	a.inflight_pkts = 300;
	a.prior_inflight_pkts = 301;
	conn = test_conn("bbr3", &a);
	for (i = 0; i < 3; i++) {
		round_ack(&conn, &a, 0);
		CHECK_EQ(test_stat(&conn, &a, "mode"), STARTUP);
	}
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "full_pipe"), 1);
	CHECK_EQ(test_stat(&conn, &a, "bdp_pkts"), 100);
	a.inflight_pkts = 100; /* not more than a BDP: DOWN, and without a bound CRUISE at once */
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CRUISE);
}

static struct cc_conn cruising(const char *scheme, struct cc_ack *a)
{
	struct cc_conn conn;
	u32 i;

	a->inflight_pkts = 90;
	a->prior_inflight_pkts = 91;
	conn = test_conn(scheme, a);
	for (i = 0; i < 5; i++)
		round_ack(&conn, a, 0);
	CHECK_EQ(test_stat(&conn, a, "mode"), CRUISE);
	return conn;
}

/*
 * A round with loss in CRUISE: inflight_lo starts at cwnd, keeps 70 %, but not less than what was delivered
 * (100 packets). With cwnd 200: 140. bw_lo likewise stays at the bandwidth delivered.
 */
static void loss_outside_a_probe_lowers_the_short_term_bounds(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);

	a.cwnd_pkts = 200;
	round_ack(&conn, &a, 5); /* counts in the round that this ACK ends */
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), 140);
	CHECK_EQ(a.cwnd_pkts, 140);
	CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), 115839);
	round_ack(&conn, &a, 5);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), 100);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), CC_BBR_INFINITY);
}

/* wait_rounds 5: after five rounds REFILL, a round later UP. Bounds of the short term are gone. */
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
 * UP with 91 in flight: one packet lost is 1.1 %, below 2 %; two more make 3.3 %: too high. inflight_hi is what
 * was in flight, more than 0.7 of min(BDP, cwnd).
 */
static void loss_beyond_two_percent_ends_a_probe(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3,wait_rounds=5", &a);
	struct cc_out out;
	u32 i;

	for (i = 0; i < 10 && test_stat(&conn, &a, "mode") != UP; i++)
		round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), UP);
	round_ack(&conn, &a, 0);
	a.rate_prior_delivered_pkts = a.delivered_pkts - 50; /* within the round */
	a.lost_pkts = 1;
	cc_call_ack(&conn, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "mode"), UP);
	a.lost_pkts = 2;
	cc_call_ack(&conn, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 91);
	CHECK(test_stat(&conn, &a, "mode") == DOWN || test_stat(&conn, &a, "mode") == CRUISE);
}

/*
 * ecn_alpha starts at 1 and loses a sixteenth in each of five unmarked rounds. A fully marked round in CRUISE
 * then lowers inflight_lo from cwnd by a third of alpha. On a path longer than ecn_max_rtt_us, and by default,
 * CE is not looked at.
 */
static void ce_lowers_inflight_lo_where_it_is_enabled(void)
{
	static const char *const schemes[] = {"bbr3,ecn_enable=1,ecn_max_rtt_us=10000",
					      "bbr3,ecn_enable=1,ecn_max_rtt_us=9999", "bbr3"};
	u32 i;

	for (i = 0; i < 3; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn;

		a.flags |= CC_ECN;
		conn = cruising(schemes[i], &a);
		CHECK_EQ(test_stat(&conn, &a, "ecn_alpha"), i ? 1024 : 743); /* 960, 900, 844, 792, 743 */
		a.cwnd_pkts = 200;
		a.delivered_ce_pkts += 100;
		round_ack(&conn, &a, 0);
		/* 743 - 46 + 64 = 761; 200 * 761 * 333 / 1024000 = 49 */
		CHECK_EQ(test_stat(&conn, &a, "ecn_alpha"), i ? 1024 : 761);
		CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), i ? CC_BBR_INFINITY : 151);
	}
}

/* Two rounds in a row with more than half of the packets marked end STARTUP, bounded by what got through. */
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
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 100);
}

/* 5 s with RTTs above the lowest: PROBE_RTT at half a BDP for 200 ms and a round, then the window is back. */
static void probe_rtt_comes_after_five_seconds(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr2", &a);
	u32 i;

	a.rtt_us = 10500;
	for (i = 0; i < 600 && test_stat(&conn, &a, "mode") != PROBE_RTT; i++)
		round_ack(&conn, &a, 0);
	/* 500 rounds of 10 ms since the start's sample, and the first beyond */
	CHECK(i >= 490 && i <= 505);
	CHECK_EQ(a.cwnd_pkts, 50);
	a.inflight_pkts = 50;
	for (i = 0; test_stat(&conn, &a, "mode") == PROBE_RTT && i < 50; i++)
		round_ack(&conn, &a, 0);
	CHECK(i >= 20 && i <= 23);
	/* 2 BDP and three bursts of 2^-10 s at 99 % of 14.48 MB/s: 14000 B, 9 packets each */
	CHECK_EQ(a.cwnd_pkts, 227);
}

static void a_timeout_gives_the_window_back_when_open(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);
	struct cc_out out;
	u32 before = a.cwnd_pkts;

	CHECK_EQ(cc_call_loss(&conn, &a), a.ssthresh_pkts);
	cc_call_event(&conn, CC_EVENT_RTO, &a, &out);
	a.cwnd_pkts = 1;
	cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
	a.ca_state = CC_LOSS;
	CHECK_EQ(out.cwnd_pkts, 1);
	cc_call_event(&conn, CC_EVENT_OPEN, &a, &out);
	CHECK_EQ(out.cwnd_pkts, before);
}

/* Alone on E1's path: the link full but for margin and probes, RTT near the empty path's 10.1 ms. */
static void alone_it_fills_the_link_without_a_queue(const char *scheme)
{
	struct sim_path path = {100000000, 10000, 187500, 0, 50, 1};
	struct sim *sim = sim_new(&path, NULL);
	struct sim_flow_config config = {.stop_us = 100000000};
	char message[256];
	u64 before, sum = 0;
	u32 i;

	CHECK_EQ((u32)cc_conn_parse(&config.conn, scheme, message, sizeof(message)), 0);
	sim_add(sim, &config);
	sim_run(sim, 5000000);
	before = sim_view(sim, 0).delivered_pkts;
	for (i = 1; i <= 2000; i++) {
		sim_run(sim, 5000000 + i * 10000ull);
		sum += sim_view(sim, 0).srtt_us;
	}
	CHECK(sim_view(sim, 0).delivered_pkts - before > 20 * 8256 * 96 / 100);
	CHECK(sum / 2000 < 13000);
	sim_free(sim);
}

static void wrong_parameters_are_refused_by_name(void)
{
	test_refused("bbr2,up_gain=999", "bbr2: parameter up_gain = 999: allowed are 1000 to 2000 (1/1000)");
	test_refused("bbr3,loss_permille=0",
		     "bbr3: parameter loss_permille = 0: allowed are 1 to 500 (1/1000)");
	test_refused("bbr3,version=2", "bbr3 has no parameter \"version\"");
}

int main(void)
{
	the_bdp_is_bandwidth_times_delay();
	gains_follow_the_mode();
	startup_ends_after_three_rounds_without_growth();
	loss_outside_a_probe_lowers_the_short_term_bounds();
	a_probe_begins_after_its_wait();
	loss_beyond_two_percent_ends_a_probe();
	ce_lowers_inflight_lo_where_it_is_enabled();
	ce_ends_startup();
	probe_rtt_comes_after_five_seconds();
	a_timeout_gives_the_window_back_when_open();
	alone_it_fills_the_link_without_a_queue("bbr2");
	alone_it_fills_the_link_without_a_queue("bbr3");
	wrong_parameters_are_refused_by_name();
	return test_done("bbr");
}
