/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "test.h"

/* Base RTT 10000 us (rtt_min_us), betao 2000: threshold RTT 12000 until it rises. */
static struct cc_conn opened(const char *text, struct cc_ack *a)
{
	struct cc_conn conn = test_conn(text, a);
	struct cc_out out;

	cc_call_event(&conn, CC_EVENT_OPEN, a, &out);
	return conn;
}

/* Runs count rounds in which every one of five ACKs, and srtt, show rtt_us. */
static void rounds(struct cc_conn *conn, struct cc_ack *a, u32 count, u32 rtt_us)
{
	a->srtt_us = rtt_us;
	while (count--)
		test_round(conn, a, 5, rtt_us);
}

static void an_ack_at_the_threshold_is_not_marked_one_us_later_is(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	test_round(&conn, &a, 4, 12000);
	CHECK_EQ(test_stat(&conn, &a, "marked"), 0);
	test_round(&conn, &a, 4, 12001);
	CHECK_EQ(test_stat(&conn, &a, "marked"), 4);
	CHECK_EQ(test_stat(&conn, &a, "samples"), 4);
}

/* step = m (srtt - T) / 100 = 50 * (20000 - 12000) / 100 = 4000 us */
static void the_fifth_starved_round_raises_the_threshold(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	rounds(&conn, &a, 4, 20000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
	CHECK_EQ(test_stat(&conn, &a, "starved"), 4);
	rounds(&conn, &a, 1, 20000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 6000);
	/* starve_rst = 5: the next starved round raises again, 50 * (20000 - 16000) / 100 */
	rounds(&conn, &a, 1, 20000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 8000);
	CHECK_EQ(test_stat(&conn, &a, "raises"), 2);
}

/* One unmarked ACK in the fourth round: the count starts again. */
static void a_round_with_one_fast_ack_is_not_starved(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	rounds(&conn, &a, 3, 20000);
	a.rtt_us = 11000;
	cc_call_sample(&conn, &a);
	test_round(&conn, &a, 4, 20000);
	CHECK_EQ(test_stat(&conn, &a, "starved"), 0);
	rounds(&conn, &a, 4, 20000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
}

static void without_compete_the_threshold_stays(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta,compete=0", &a);

	rounds(&conn, &a, 20, 20000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
}

/* One raise from srtt 32000: 2000 + (32000 - 12000) / 2 = 12000, threshold RTT 22000, half of it 11000. */
static void the_gradient_resets_below_half_not_at_half(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta_grad", &a);

	rounds(&conn, &a, 5, 32000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 12000);
	rounds(&conn, &a, 1, 11000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 12000);
	rounds(&conn, &a, 1, 10999);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
	CHECK_EQ(test_stat(&conn, &a, "resets"), 1);
}

static void without_comeback_it_never_comes_down(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	rounds(&conn, &a, 5, 32000);
	rounds(&conn, &a, 50, 10100);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 12000);
}

/*
 * From the fifth round on every round at 32000 us halves the gap to 22000: 12000, 17000, 19500, 20750, 21375,
 * 21687, 21843, 21921, 21960, 21980 after round 14, which is the tenth above betao: P1 = 10 starts a trial at
 * 21980 * 5 / 100 = 1099, raised to betao = 2000. The queue was 22000, so a dip is below 10000 + 13200.
 */
static struct cc_conn in_trial(const char *text, struct cc_ack *a)
{
	struct cc_conn conn = opened(text, a);

	rounds(&conn, a, 13, 32000);
	CHECK_EQ(test_stat(&conn, a, "threshold_us"), 21960);
	CHECK_EQ(test_stat(&conn, a, "trials"), 0);
	rounds(&conn, a, 1, 32000);
	CHECK_EQ(test_stat(&conn, a, "trials"), 1);
	CHECK_EQ(test_stat(&conn, a, "trial"), 3);
	return conn;
}

static void a_trial_without_a_dip_restores_the_threshold(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = in_trial("ta_per,P1=10,P2=3", &a);

	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
	rounds(&conn, &a, 2, 23200);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
	CHECK_EQ(test_stat(&conn, &a, "trial"), 1);
	rounds(&conn, &a, 1, 23200);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 21980);
	CHECK_EQ(test_stat(&conn, &a, "starved"), 0);
	CHECK_EQ(test_stat(&conn, &a, "resets"), 0);
	/* the round that restored is the first of the next period: nine more, then a second trial */
	rounds(&conn, &a, 8, 23200);
	CHECK_EQ(test_stat(&conn, &a, "trials"), 1);
	rounds(&conn, &a, 1, 23200);
	CHECK_EQ(test_stat(&conn, &a, "trials"), 2);
}

static void a_trial_with_a_dip_stays_at_the_low_threshold(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = in_trial("ta_per,P1=10,P2=3", &a);

	rounds(&conn, &a, 1, 23199);
	CHECK_EQ(test_stat(&conn, &a, "resets"), 1);
	rounds(&conn, &a, 3, 11000);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
	CHECK_EQ(test_stat(&conn, &a, "trial"), 0);
}

/* One ACK of the round at 23199, four at 30000: a dip by the minimum RTT, none by the maximum. */
static void the_dip_is_the_minimum_rtt_by_default(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = in_trial("ta_per,P1=10,P2=3", &a);

	a.rtt_us = 23199;
	cc_call_sample(&conn, &a);
	test_round(&conn, &a, 4, 30000);
	CHECK_EQ(test_stat(&conn, &a, "resets"), 1);
	a = test_ack();
	conn = in_trial("ta_per,P1=10,P2=3,dip_min_rtt=0", &a);
	a.rtt_us = 23199;
	cc_call_sample(&conn, &a);
	test_round(&conn, &a, 4, 30000);
	CHECK_EQ(test_stat(&conn, &a, "resets"), 0);
}

/* Between trials, a collapse of the delay is ignored: only a trial can end in a reset. */
static void periodic_backoff_ignores_the_gradient_between_trials(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta_per,P1=10,P2=3", &a);

	rounds(&conn, &a, 6, 32000);
	rounds(&conn, &a, 2, 10100);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 17000);
}

static void without_the_floor_a_trial_goes_below_betao(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = in_trial("ta_per,P1=10,P2=3,hold_floor=0", &a);

	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 1099);
}

/*
 * alpha: (15 * 256 + 0) >> 4 = 240 after an unmarked round; then with 1 of 4 marked
 * (15 * 240 + 64) >> 4 = 229; all marked keeps (15 * 256 + 256) >> 4 = 256.
 */
static void alpha_is_a_moving_average_of_the_marked_share(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	test_round(&conn, &a, 5, 20000);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 256);
	test_round(&conn, &a, 5, 11000);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 240);
	a.rtt_us = 12001;
	cc_call_sample(&conn, &a);
	test_round(&conn, &a, 3, 11000);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 229);
}

/* 20 - 20 * 256 / 512 = 10; the EWMA of the fully marked round is 256 */
static void a_marked_round_cuts_by_half_of_alpha(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	test_round(&conn, &a, 5, 20000);
	CHECK_EQ(a.cwnd_pkts, 10);
	CHECK_EQ(a.ssthresh_pkts, 10);
}

/* 1 + gamma base / (base + beta) = 1 + 40000 / 12000 = 4; 1 + 10000 / 5000 = 3; 1 */
static void an_unmarked_round_grows_by_the_fairness_rule(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	test_round(&conn, &a, 5, 11000);
	CHECK_EQ(a.cwnd_pkts, 24);
	a = test_ack();
	conn = opened("ta,rtt_fairness=1", &a);
	test_round(&conn, &a, 5, 11000);
	CHECK_EQ(a.cwnd_pkts, 23);
	a = test_ack();
	conn = opened("ta,rtt_fairness=0", &a);
	test_round(&conn, &a, 5, 11000);
	CHECK_EQ(a.cwnd_pkts, 21);
}

/* target = 20 * 10000 / 16000 = 12, plus one */
static void a_mark_ends_slow_start(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);

	a.ssthresh_pkts = CC_INFINITE;
	test_round(&conn, &a, 5, 16000);
	CHECK_EQ(a.cwnd_pkts, 13);
	CHECK_EQ(a.ssthresh_pkts, 13);
}

static void a_round_without_samples_changes_nothing(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);
	struct cc_out out;

	rounds(&conn, &a, 4, 20000);
	a.cwnd_pkts = 20;
	out = test_round(&conn, &a, 0, 0);
	CHECK_EQ(out.flags, CC_OUT_ROUND);
	CHECK_EQ(a.cwnd_pkts, 20);
	CHECK_EQ(test_stat(&conn, &a, "starved"), 4);
	CHECK_EQ(test_stat(&conn, &a, "alpha"), 256);
}

static void the_threshold_survives_loss_timeout_and_idle(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);
	struct cc_out out;

	rounds(&conn, &a, 5, 20000);
	cc_call_loss(&conn, &a);
	cc_call_event(&conn, CC_EVENT_RTO, &a, &out);
	cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
	cc_call_event(&conn, CC_EVENT_OPEN, &a, &out);
	cc_call_event(&conn, CC_EVENT_RESTART, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 6000);
	cc_call_init(&conn, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "threshold_us"), 2000);
}

/* test_ack begins 1024 bytes below 2^32. 40 rounds of 20 packets cross it and are still 40 rounds. */
static void rounds_pass_the_wrap_of_sequence_numbers(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta", &a);
	u32 i;

	for (i = 0; i < 40; i++)
		CHECK_EQ(test_round(&conn, &a, 3, 11000).flags, CC_OUT_ROUND);
	CHECK(a.una_seq < 0x80000000u);
}

/* With the fixed base of 5000 us, 7001 is the first marked RTT. The own minimum, and the larger of both, as named. */
static void the_base_follows_its_mode(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = opened("ta,hardcoding=0,basedelay_hc=5000", &a);

	test_round(&conn, &a, 3, 7001);
	CHECK_EQ(test_stat(&conn, &a, "marked"), 3);
	conn = opened("ta,hardcoding=2", &a);
	test_round(&conn, &a, 3, 10500);
	CHECK_EQ(test_stat(&conn, &a, "base_us"), 10500);
	conn = opened("ta,hardcoding=3", &a);
	test_round(&conn, &a, 3, 9000);
	CHECK_EQ(test_stat(&conn, &a, "base_us"), 10000);
	a.rtt_min_us = CC_NO_RTT;
	conn = opened("ta", &a);
	test_round(&conn, &a, 3, 9500);
	CHECK_EQ(test_stat(&conn, &a, "base_us"), 9500);
}

static void wrong_parameters_are_refused_by_name(void)
{
	test_refused("ta,betao=99", "ta: parameter betao = 99: allowed are 100 to 1000000 (us)");
	test_refused("ta,compete=2", "ta: parameter compete = 2: allowed are 0 to 1 (flag)");
	test_refused("ta,starve_rst=6", "ta: parameter starve_rst = 6: must not exceed inc_thresh");
	test_refused("ta_grad,P1=9", "ta: parameter P1 = 9: must be 0 (off) or at least 10 rounds");
	test_refused("ta_per,P1=10001", "ta: parameter P1 = 10001: allowed are 0 to 10000 (rounds)");
	test_refused("ta_per,P1=50,P2=50", "ta: parameter P2 = 50: must be shorter than P1");
	test_refused("ta,P1=200", "ta: parameter P1 = 200: periodic backoff needs comeback = 1");
	test_refused("ta_per,drop=100", "ta: parameter drop = 100: allowed are 1 to 99 (%)");
}

int main(void)
{
	an_ack_at_the_threshold_is_not_marked_one_us_later_is();
	the_fifth_starved_round_raises_the_threshold();
	a_round_with_one_fast_ack_is_not_starved();
	without_compete_the_threshold_stays();
	the_gradient_resets_below_half_not_at_half();
	without_comeback_it_never_comes_down();
	a_trial_without_a_dip_restores_the_threshold();
	a_trial_with_a_dip_stays_at_the_low_threshold();
	the_dip_is_the_minimum_rtt_by_default();
	periodic_backoff_ignores_the_gradient_between_trials();
	without_the_floor_a_trial_goes_below_betao();
	alpha_is_a_moving_average_of_the_marked_share();
	a_marked_round_cuts_by_half_of_alpha();
	an_unmarked_round_grows_by_the_fairness_rule();
	a_mark_ends_slow_start();
	a_round_without_samples_changes_nothing();
	the_threshold_survives_loss_timeout_and_idle();
	test_reductions_forget_credits("ta");
	rounds_pass_the_wrap_of_sequence_numbers();
	the_base_follows_its_mode();
	wrong_parameters_are_refused_by_name();
	return test_done("ta");
}
