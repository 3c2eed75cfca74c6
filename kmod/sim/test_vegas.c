/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "test.h"

/* Vegas counts an RTT of r us as r + 1; base 10000 from the handshake sample on. */
static struct cc_conn with_base(const char *text, struct cc_ack *a)
{
	struct cc_conn conn = test_conn(text, a);

	a->rtt_us = 9999;
	cc_call_sample(&conn, a);
	return conn;
}

/* queue = cwnd * (min - base) / base = 20 * 1000 / 10000 = 2, neither < alpha = 2 nor > beta = 4 */
static void a_queue_between_alpha_and_beta_holds_the_window(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 5, 10999);
	CHECK_EQ(test_stat(&conn, &a, "queue_pkts"), 2);
	CHECK_EQ(a.cwnd_pkts, 20);
}

/* 20 * 999 / 10000 = 1 (1.998 rounded down): one packet more */
static void a_queue_below_alpha_grows_by_one(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 5, 10998);
	CHECK_EQ(a.cwnd_pkts, 21);
}

/* 20 * 2000 / 10000 = 4 is beta: hold. In slow start 20 * 500 / 10000 = 1 is gamma: one more per ACK. */
static void a_queue_at_the_limit_is_within_it(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 5, 11999);
	CHECK_EQ(test_stat(&conn, &a, "queue_pkts"), 4);
	CHECK_EQ(a.cwnd_pkts, 20);
	a.ssthresh_pkts = CC_INFINITE;
	test_round(&conn, &a, 5, 10499);
	CHECK_EQ(a.cwnd_pkts, 21);
	CHECK_EQ(a.ssthresh_pkts, CC_INFINITE);
	test_conn("vegas,alpha=4,beta=4,gamma=4", &a);
}

/* 20 * 2500 / 10000 = 5 > 4: one less, and ssthresh = min(10, 19) raised to 3/4 of 19 = 9 + 4 = 13 */
static void a_queue_above_beta_shrinks_by_one(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 5, 12499);
	CHECK_EQ(a.cwnd_pkts, 19);
	CHECK_EQ(a.ssthresh_pkts, 13);
}

/* queue = 20 * 2500 / 10000 = 5 > gamma: target = 20 * 10000 / 12500 = 16, plus one */
static void slow_start_ends_at_the_window_without_a_queue(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	a.ssthresh_pkts = CC_INFINITE;
	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 5, 12499);
	CHECK_EQ(a.cwnd_pkts, 17);
	CHECK_EQ(a.ssthresh_pkts, 17);
}

/* Two samples are too few: the round's ACK counts for Reno, 1/20 of a packet. */
static void two_samples_leave_it_to_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	cc_call_event(&conn, CC_EVENT_OPEN, &a, &(struct cc_out){0});
	test_round(&conn, &a, 2, 12499);
	CHECK_EQ(a.cwnd_pkts, 20);
}

static void loss_halves_and_never_below_two(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);

	CHECK_EQ(cc_call_loss(&conn, &a), 10);
	a.cwnd_pkts = 3;
	CHECK_EQ(cc_call_loss(&conn, &a), 2);
	a.prior_cwnd_pkts = 40;
	CHECK_EQ(cc_call_undo(&conn, &a), 40);
}

/* 30 ACKs of one packet at cwnd 20 outside Open: 30/20 = one packet, 10 kept */
static void outside_open_it_is_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);
	struct cc_out out;
	u32 i;

	cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
	for (i = 0; i < 30; i++) {
		cc_call_ack(&conn, &a, &out);
		a.cwnd_pkts = out.cwnd_pkts;
	}
	CHECK_EQ(a.cwnd_pkts, 21);
}

static void idle_forgets_the_base(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = with_base("vegas", &a);
	struct cc_out out;

	cc_call_event(&conn, CC_EVENT_RESTART, &a, &out);
	a.rtt_us = 30000;
	cc_call_sample(&conn, &a);
	CHECK_EQ(test_stat(&conn, &a, "base_us"), 30001);
}

static void wrong_parameters_are_refused_by_name(void)
{
	test_refused("vegas,alpha=1001", "vegas: parameter alpha = 1001: allowed are 0 to 1000 (pkts)");
	test_refused("vegas,alpha=5", "vegas: parameter alpha = 5: must not exceed beta");
	test_refused("vegas,gamma=5", "vegas: parameter gamma = 5: must not exceed beta");
	test_refused("vegas,delta=5", "vegas has no parameter \"delta\"");
	test_refused("vegas,alpha", "vegas: \"alpha\": write parameter=value");
	test_refused("vegas,alpha=-1", "vegas: parameter alpha: \"-1\" is not a whole number");
	test_refused("vegas,alpha=4294967296",
		     "vegas: parameter alpha: \"4294967296\" is not a whole number");
	test_refused("vega", "there is no congestion control \"vega\"");
}

int main(void)
{
	a_queue_between_alpha_and_beta_holds_the_window();
	a_queue_below_alpha_grows_by_one();
	a_queue_at_the_limit_is_within_it();
	a_queue_above_beta_shrinks_by_one();
	slow_start_ends_at_the_window_without_a_queue();
	two_samples_leave_it_to_reno();
	loss_halves_and_never_below_two();
	outside_open_it_is_reno();
	test_reductions_forget_credits("vegas");
	idle_forgets_the_base();
	wrong_parameters_are_refused_by_name();
	return test_done("vegas");
}
