/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The model, STARTUP, DRAIN, PROBE_RTT, recovery and idle restart. Probes: test_bbr_probe.c. */
#include "test_bbr.h"

/* One packet per 100 us is 2^24 / 100 = 167772; times 10 ms: 99.99, rounded up to 100 packets. */
static void the_bdp_is_bandwidth_times_delay(void)
{
	struct cc_bbr_state st = {.min_rtt_us = 10000, .mode = CRUISE, .init_cwnd = 10};
	u32 bw = (1u << CC_BBR_BW) / 100;

	CHECK_EQ(cc_bbr_bdp(&st, bw, 256), 100);
	CHECK_EQ(cc_bbr_bdp(&st, bw, 512), 200);
	CHECK_EQ(cc_bbr_bdp(&st, bw, 128), 50);
	st.min_rtt_us = CC_NO_RTT;
	CHECK_EQ(cc_bbr_bdp(&st, bw, 256), 10); /* no RTT: the initial window */
	/* 10^4 packets/s of 1448 B, less the truncation of bw: 14 479 986; 1 % less; in kbit/s 115 839 */
	CHECK_EQ(cc_bbr_rate(bw, 1448, 256, 0), 14479986);
	CHECK_EQ(cc_bbr_rate(bw, 1448, 256, 1), 14335186);
	CHECK_EQ(cc_bbr_kbps(bw, 1448), 115839);
}

/* The source's constants in 1/256: 277 * 256 / 100 + 1 = 710, 2885 * 256 / 1000 + 1 = 739, 91 * 256 / 100 = 232 ... */
static void gains_are_those_of_the_source(void)
{
	struct cc_bbr_state st = {.mode = STARTUP};
	const struct cc_bbr_params *two = cc_bbr2_of(&cc_bbr2_defaults);
	const struct cc_bbr_params *three = cc_bbr3_of(&cc_bbr3_defaults);

	CHECK_EQ(cc_bbr_pacing_gain(st.mode, two), 739);
	CHECK_EQ(cc_bbr_pacing_gain(st.mode, three), 710);
	CHECK_EQ(cc_bbr_cwnd_gain(st.mode, two), 739);
	CHECK_EQ(cc_bbr_cwnd_gain(st.mode, three), 512);
	st.mode = DRAIN;
	CHECK_EQ(cc_bbr_pacing_gain(st.mode, three), 88);
	st.mode = DOWN;
	CHECK_EQ(cc_bbr_pacing_gain(st.mode, two), 192);
	CHECK_EQ(cc_bbr_pacing_gain(st.mode, three), 232);
	st.mode = UP;
	CHECK_EQ(cc_bbr_pacing_gain(st.mode, two), 320);
	CHECK_EQ(cc_bbr_cwnd_gain(st.mode, two), 512);
	CHECK_EQ(cc_bbr_cwnd_gain(st.mode, three), 576);
	st.mode = PROBE_RTT;
	CHECK_EQ(cc_bbr_cwnd_gain(st.mode, three), 256);
	CHECK_EQ(cc_bbr_permille(three->loss_permille), 5);
	CHECK_EQ(cc_bbr_pct(three->cut_pct), 76);
	CHECK_EQ(cc_bbr_pct(three->headroom_pct), 38);
	CHECK_EQ(cc_bbr_permille(three->ecn_factor_permille), 85);
}

/*
 * The first round shows a bandwidth of 10^4 packets/s, which grew from nothing. The next three do not grow by 25 %: the fourth ACK moves on
 * to DRAIN, which ssthresh shows.
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
	CHECK_EQ(round_ack(&conn, &a, 0).ssthresh_pkts, 101);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "full_pipe"), 1);
	CHECK_EQ(test_stat(&conn, &a, "bdp_pkts"), 101);
	a.inflight_pkts = 101; /* not more than a BDP: DOWN; but there was more before the ACK */
	a.prior_inflight_pkts = 102;
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DOWN);
	a.prior_inflight_pkts = 101;
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CRUISE);
}

/* A state that begins also gives a row in the middle of a round: DRAIN may last for a fraction of one. */
static void a_state_that_begins_gives_a_row(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	struct cc_out out;
	u32 i;

	a.inflight_pkts = 300;
	a.prior_inflight_pkts = 301;
	conn = test_conn("bbr3", &a);
	for (i = 0; i < 3; i++)
		CHECK_EQ(round_ack(&conn, &a, 0).flags, CC_OUT_ROUND);
	CHECK_EQ(round_ack(&conn, &a, 0).flags, CC_OUT_ROUND | CC_OUT_STATE);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DRAIN);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 88);
	CHECK_EQ(test_stat(&conn, &a, "cwnd_gain"), 512);
	CHECK_EQ(test_stat(&conn, &a, "bw_lo_kbps"), CC_BBR_INFINITY);
	CHECK_EQ(test_stat(&conn, &a, "cwnd_pkts"), a.cwnd_pkts);
	CHECK_EQ(test_stat(&conn, &a, "inflight_pkts"), 300);
	CHECK_EQ(ack(&conn, &a, 0).flags, 0);
	a.inflight_pkts = 101;
	a.prior_inflight_pkts = 102;
	CHECK_EQ(ack(&conn, &a, 0).flags, CC_OUT_STATE);
	CHECK_EQ(test_stat(&conn, &a, "mode"), DOWN);
	CHECK_EQ(test_stat(&conn, &a, "pacing_gain"), 232);
	CHECK_EQ(ack(&conn, &a, 0).flags, 0);
	/* An event ends PROBE_RTT. */
	state_of(&conn)->mode = PROBE_RTT;
	state_of(&conn)->last_mode = PROBE_RTT;
	state_of(&conn)->probe_rtt_done_stamp_us = (u32)a.now_us - 1;
	a.flags |= CC_APP_LIMITED;
	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	CHECK_EQ(out.flags, CC_OUT_STATE);
	CHECK_EQ(test_stat(&conn, &a, "mode"), CRUISE);
}

/* PROBE_RTT lasts 200 ms from a time that may be 1 us later. 40 minutes exceed half of the range of 32 bits; 2^32 us are 71.6 minutes. */
static void probe_rtt_ends_also_after_a_long_idle_time(void)
{
	static const struct {
		u32 since_end_us, mode;
	} cases[] = {{1, CRUISE}, {2400000000u, CRUISE}, {0u - 200002, CRUISE}, {0, PROBE_RTT}, {0u - 200001, PROBE_RTT}};
	u32 i;

	for (i = 0; i < 5; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn = cruising("bbr3", &a);
		struct cc_out out;

		a.now_us += 3000000000u;
		state_of(&conn)->mode = PROBE_RTT;
		state_of(&conn)->probe_rtt_done_stamp_us = (u32)a.now_us - cases[i].since_end_us;
		a.flags |= CC_APP_LIMITED;
		cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
		CHECK_EQ(test_stat(&conn, &a, "mode"), cases[i].mode);
	}
}

/*
 * A round with loss in CRUISE. The loss counts in the round that begins when it is noticed. At the end of that round, inflight_lo starts at
 * cwnd, 201, and keeps 180/256 of it, but not less than what was delivered (100 packets). bw_lo stays at the delivered bandwidth.
 */
static void loss_outside_a_probe_lowers_the_short_term_bounds(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);

	a.cwnd_pkts = 200;
	round_ack(&conn, &a, 5);
	CHECK_EQ(a.cwnd_pkts, 201);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), CC_BBR_INFINITY);
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), 141);
	CHECK_EQ(a.cwnd_pkts, 141);
	CHECK_EQ(test_stat(&conn, &a, "bw_kbps"), 115840);
	round_ack(&conn, &a, 5);
	round_ack(&conn, &a, 0);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), 100);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), CC_BBR_INFINITY);
}

/*
 * After 5 s without a lower RTT: PROBE_RTT at half a BDP for 200 ms and a round, then the window is restored. A5: BBRv3 also enters it if
 * RTTs equal the minimum, BBRv2 does not.
 */
static void probe_rtt_comes_after_five_seconds(void)
{
	static const struct {
		const char *scheme;
		u32 rtt_us, comes;
	} cases[] = {{"bbr2", 10500, 1}, {"bbr3", 10500, 1}, {"bbr2", 10000, 0}, {"bbr3", 10000, 1}};
	u32 i, k;

	for (k = 0; k < 4; k++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn = cruising(cases[k].scheme, &a);

		a.rtt_us = cases[k].rtt_us;
		for (i = 0; i < 600 && test_stat(&conn, &a, "mode") != PROBE_RTT; i++)
			round_ack(&conn, &a, 0);
		CHECK_EQ(i < 600, cases[k].comes);
		if (!cases[k].comes)
			continue;
		/* 500 rounds of 10 ms since the sample at the start, plus the first beyond */
		CHECK(i >= 490 && i <= 505);
		CHECK_EQ(a.cwnd_pkts, 51);
		a.inflight_pkts = 50;
		for (i = 0; test_stat(&conn, &a, "mode") == PROBE_RTT && i < 50; i++)
			round_ack(&conn, &a, 0);
		CHECK(i >= 20 && i <= 23);
		CHECK_EQ(a.cwnd_pkts, 202);
	}
}

/* A higher RTT replaces an expired one, unless the ACK was delayed. */
static void a_delayed_ack_does_not_raise_the_lowest_rtt(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);

	a.now_us += 6000000;
	a.rtt_us = 30000;
	a.flags |= CC_ACK_DELAYED;
	round_ack(&conn, &a, 0);
	CHECK_EQ(state_of(&conn)->probe_rtt_min_us, 10000);
	a.flags &= ~CC_ACK_DELAYED;
	round_ack(&conn, &a, 0);
	CHECK_EQ(state_of(&conn)->probe_rtt_min_us, 30000);
}

/* PROBE_RTT at 100 delivered packets, 50 in flight: packets sent up to 150 are no sample of the bandwidth. */
static void samples_of_probe_rtt_are_application_limited(void)
{
	struct cc_bbr_state st = {.flags = CC_BBR_LOW_RATE, .low_rate_from = 100, .low_rate_to = 150};
	struct cc_ack a = test_ack();

	a.rate_prior_delivered_pkts = 99;
	CHECK_EQ(cc_bbr_is_app_limited(&st, &a), 0);
	a.rate_prior_delivered_pkts = 100;
	CHECK_EQ(cc_bbr_is_app_limited(&st, &a), 1);
	a.rate_prior_delivered_pkts = 150;
	CHECK_EQ(cc_bbr_is_app_limited(&st, &a), 1);
	a.rate_prior_delivered_pkts = 151;
	CHECK_EQ(cc_bbr_is_app_limited(&st, &a), 0);
	CHECK_EQ(st.flags, 0);
}

/* A host may skip the events to which the core does not react. */
static void events_that_may_be_skipped_change_nothing(void)
{
	struct cc_bbr3_state st = {.bbr = {.mode = CRUISE, .last_mode = CRUISE}}, before;
	struct cc_ack a = test_ack();
	struct cc_out out;
	u32 event;

	for (event = CC_EVENT_RESTART; event < CC_EVENTS; event++) {
		CHECK_EQ(cc_bbr3_reacts_to(&st, event, 0), 0);
		memcpy(&before, &st, sizeof(st));
		cc_bbr3_on_event(&st, &cc_bbr3_defaults, event, &a, &out);
		CHECK_EQ(memcmp(&before, &st, sizeof(st)), 0);
		CHECK_EQ(out.pacing_bytes_per_sec, 0);
		CHECK_EQ(out.cwnd_pkts, a.cwnd_pkts);
		CHECK_EQ(out.ssthresh_pkts, a.ssthresh_pkts);
		CHECK_EQ(out.flags, 0);
	}
	CHECK(cc_bbr3_reacts_to(&st, CC_EVENT_TX_START, 1));
	CHECK(!cc_bbr3_reacts_to(&st, CC_EVENT_RTO, 1));
	st.bbr.flags = CC_BBR_LOW_RATE;
	CHECK(cc_bbr3_reacts_to(&st, CC_EVENT_TX_START, 0));
	for (event = CC_EVENT_OPEN; event <= CC_EVENT_LOSS; event++)
		CHECK(cc_bbr3_reacts_to(&st, event, 0));
}

/* Different values for what a host may omit: the fields of CC_SKIPS_FIELDS, what probes read, and a random number that is not drawn. */
static struct cc_ack with_other_fields(const struct cc_bbr_state *st, const struct cc_ack *a)
{
	struct cc_ack other = *a;

	if (!cc_bbr_draws(st))
		other.random = ~a->random;
	if (!cc_bbr_reads_probe(st)) {
		other.srtt_us = ~a->srtt_us;
		other.prior_inflight_pkts = ~a->prior_inflight_pkts;
		other.edt_delay_us = ~a->edt_delay_us;
		other.flags ^= CC_CWND_FULL;
	}
	other.mdev_us = ~a->mdev_us;
	other.rtt_min_us = ~a->rtt_min_us;
	other.prior_cwnd_pkts = ~a->prior_cwnd_pkts;
	other.una_seq = ~a->una_seq;
	other.nxt_seq = ~a->nxt_seq;
	other.mtu_bytes = ~a->mtu_bytes;
	other.flags ^= CC_CWND_LIMITED;
	return other;
}

/* Numbers of ACKs: all, those on the fast path, and of these, those with a round and those with a different pacing rate. */
static struct {
	u32 all, fast, rounds, rates;
} acks;

/* Checks that both paths give the same, except for the sample that stays in the state. */
static void on_ack_by_both_paths(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, const struct cc_ack *given,
				 struct cc_out *out)
{
	struct cc_bbr_state other = *st;
	struct cc_ack a = *given;
	struct cc_out fast;

	if (acks.all++ % 7 == 0)
		a.flags |= CC_APP_LIMITED;
	if (acks.all % 11 == 0)
		other.flags = st->flags |= CC_BBR_IDLE_RESTART;
	cc_bbr_on_slow_ack(st, p, version, &a, out);
	if (!cc_bbr_may_take_fast_path(&other, p, version) || !cc_bbr_takes_fast_path(&other, p, &a))
		return;
	cc_bbr_on_fast_ack(&other, p, version, &a, &fast);
	other.rs = st->rs;
	CHECK_EQ(memcmp(st, &other, sizeof(other)), 0);
	CHECK_EQ(fast.cwnd_pkts, out->cwnd_pkts);
	CHECK_EQ(fast.ssthresh_pkts, out->ssthresh_pkts);
	CHECK_EQ(fast.pacing_bytes_per_sec, out->pacing_bytes_per_sec);
	CHECK_EQ(fast.flags, out->flags);
	acks.fast++;
	acks.rounds += fast.flags == CC_OUT_ROUND;
	acks.rates += fast.pacing_bytes_per_sec != 0;
}

static void bbr2_on_ack(void *st, const u32 *p, const struct cc_ack *a, struct cc_out *out)
{
	on_ack_by_both_paths(st, (const struct cc_bbr_params *)p, 2, a, out);
}

static void bbr3_on_ack(void *st, const u32 *p, const struct cc_ack *a, struct cc_out *out)
{
	on_ack_by_both_paths(st, (const struct cc_bbr_params *)p, 3, a, out);
}

/* Runs a minute beside another flow, with losses in the small queue. */
static void compare_paths(const char *scheme, const char *rival, u32 queue_bytes)
{
	struct sim_path path = {100000000, 10000, queue_bytes, 0, 500, 1};
	struct sim_flow_config config = {.stop_us = 100000000}, other = {.stop_us = 100000000};
	struct sim *sim = sim_new(&path, NULL);
	char message[256];
	struct cc_ops ops;

	CHECK_EQ((u32)cc_conn_parse(&config.conn, scheme, message, sizeof(message)), 0);
	CHECK_EQ((u32)cc_conn_parse(&other.conn, rival, message, sizeof(message)), 0);
	ops = *config.conn.ops;
	ops.on_ack = strstr(scheme, "bbr2") ? bbr2_on_ack : bbr3_on_ack;
	config.conn.ops = &ops;
	sim_add(sim, &config);
	sim_add(sim, &other);
	sim_run(sim, 60000000);
	sim_free(sim);
}

static void the_fast_path_is_the_general_one(void)
{
	compare_paths("bbr2", "bbr2", 187500);
	compare_paths("bbr2", "cubic", 62500);
	compare_paths("bbr3", "bbr3", 187500);
	compare_paths("bbr3", "cubic", 62500);
	CHECK(acks.fast > acks.all / 2 && acks.rounds > 1000 && acks.rates > 10);
}

/* Rounds through every state, some with loss. DRAIN, and DOWN of bbr2, last no longer than an ACK. */
static void skipped_fields_change_nothing(const char *scheme)
{
	struct cc_ack a = test_ack(), b;
	struct cc_conn conn = test_conn(scheme, &a), other = conn;
	u32 modes = 0, i;

	for (i = 0; i < 2000; i++) {
		a.rtt_us = 11000;
		a.random = i * 2654435761u;
		a.flags = (i & 4 ? CC_CWND_FULL : 0) | (i & 8 ? CC_APP_LIMITED : 0);
		b = with_other_fields(state_of(&conn), &a);
		round_ack(&conn, &a, i % 37 ? 0 : 4);
		round_ack(&other, &b, i % 37 ? 0 : 4);
		CHECK_EQ(memcmp(conn.state, other.state, sizeof(conn.state)), 0);
		CHECK_EQ(a.cwnd_pkts, b.cwnd_pkts);
		CHECK_EQ(a.pacing_bytes_per_sec, b.pacing_bytes_per_sec);
		modes |= 1u << state_of(&conn)->mode;
	}
	CHECK_EQ(modes | 1u << DRAIN | 1u << DOWN, (1u << (PROBE_RTT + 1)) - 1);
}

/* In PROBE_RTT, the packets in flight are counted as its packets, so later samples of them do not move the max_bw filter. */
static void probe_rtt_keeps_the_bandwidth(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);

	state_of(&conn)->mode = CC_BBR_PROBE_RTT;
	round_ack(&conn, &a, 0);
	CHECK_EQ(state_of(&conn)->low_rate_from, a.delivered_pkts);
	CHECK_EQ(state_of(&conn)->low_rate_to, a.delivered_pkts + 90);
	CHECK((state_of(&conn)->flags & CC_BBR_LOW_RATE) != 0);
}

/* Idle and application-limited: the pacing rate is the bandwidth's, 99 % of 14.48 MB/s, until more is needed. */
static void restart_from_idle_paces_at_the_bandwidth(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);
	struct cc_out out;

	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	CHECK_EQ(out.pacing_bytes_per_sec, 0);
	a.flags |= CC_APP_LIMITED;
	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	CHECK_EQ(out.pacing_bytes_per_sec, 14335271);
	CHECK((state_of(&conn)->flags & CC_BBR_IDLE_RESTART) != 0);
}

/* Only a parameter changes: 14.48 MB/s minus 1 % or 0 %, a window of 201 or 101 packets plus extra_acked. */
static void a_changed_parameter_applies_at_once(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);
	struct cc_bbr3_params *p = (struct cc_bbr3_params *)conn.params;

	a.cwnd_pkts = 1000;
	ack(&conn, &a, 0);
	CHECK_EQ(a.pacing_bytes_per_sec, 14335271);
	CHECK(a.cwnd_pkts >= 201);
	p->margin_pct = 0;
	ack(&conn, &a, 0);
	CHECK_EQ(a.pacing_bytes_per_sec, 14480072);
	CHECK(a.cwnd_pkts >= 201);
	p->cwnd_gain = 1000;
	ack(&conn, &a, 0);
	CHECK(a.cwnd_pkts >= 101 && a.cwnd_pkts < 150);
}

/* A spurious loss: inflight_hi and the lower bounds are restored. */
static void undo_restores_the_bounds(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = probing("bbr3,wait_rounds=5", &a);
	u32 before = a.cwnd_pkts;

	state_of(&conn)->inflight_hi = 300;
	cc_call_loss(&conn, &a);
	ack(&conn, &a, 50);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 101);
	round_ack(&conn, &a, 0);
	round_ack(&conn, &a, 5);
	round_ack(&conn, &a, 0);
	CHECK(test_stat(&conn, &a, "inflight_lo_pkts") < CC_BBR_INFINITY);
	CHECK_EQ(cc_call_undo(&conn, &a), before);
	CHECK_EQ(test_stat(&conn, &a, "inflight_hi_pkts"), 300);
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), CC_BBR_INFINITY);
}

static void a_timeout_gives_the_window_back(void)
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
	CHECK_EQ(test_stat(&conn, &a, "inflight_lo_pkts"), before);
	cc_call_event(&conn, CC_EVENT_OPEN, &a, &out);
	CHECK_EQ(out.cwnd_pkts, before);
}

/* After an ordinary recovery, the packets in flight are the model's, not those from before. */
static void recovery_does_not_raise_the_window(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = cruising("bbr3", &a);
	struct cc_out out;

	a.cwnd_pkts = 200;
	cc_call_loss(&conn, &a);
	a.cwnd_pkts = 100;
	a.ca_state = CC_RECOVERY;
	cc_call_event(&conn, CC_EVENT_OPEN, &a, &out);
	CHECK_EQ(out.cwnd_pkts, 100);
}

/* Alone on E1's path: the link is full except for margin and probes, with an RTT near the 10.1 ms of the empty path. */
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
	gains_are_those_of_the_source();
	startup_ends_after_three_rounds_without_growth();
	a_state_that_begins_gives_a_row();
	loss_outside_a_probe_lowers_the_short_term_bounds();
	probe_rtt_comes_after_five_seconds();
	probe_rtt_ends_also_after_a_long_idle_time();
	a_delayed_ack_does_not_raise_the_lowest_rtt();
	samples_of_probe_rtt_are_application_limited();
	events_that_may_be_skipped_change_nothing();
	skipped_fields_change_nothing("bbr2,wait_ms=300,probe_rtt_interval_ms=3000");
	skipped_fields_change_nothing("bbr3,wait_ms=300,probe_rtt_interval_ms=3000");
	the_fast_path_is_the_general_one();
	probe_rtt_keeps_the_bandwidth();
	restart_from_idle_paces_at_the_bandwidth();
	a_changed_parameter_applies_at_once();
	undo_restores_the_bounds();
	a_timeout_gives_the_window_back();
	recovery_does_not_raise_the_window();
	alone_it_fills_the_link_without_a_queue("bbr2");
	alone_it_fills_the_link_without_a_queue("bbr3");
	wrong_parameters_are_refused_by_name();
	return test_done("bbr");
}
