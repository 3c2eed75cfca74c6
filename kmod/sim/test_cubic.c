/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "cubic.h"
#include "test.h"

/* An ACK of acked_pkts at now_us. *a keeps cwnd and ssthresh. */
static struct cc_out ack(struct cc_conn *conn, struct cc_ack *a, u64 now_us, u32 acked_pkts)
{
	struct cc_out out;

	a->now_us = now_us;
	a->acked_pkts = acked_pkts;
	cc_call_ack(conn, a, &out);
	return out;
}

static void sample(struct cc_conn *conn, struct cc_ack *a, u64 now_us, u32 rtt_us)
{
	a->now_us = now_us;
	a->rtt_us = rtt_us;
	cc_call_sample(conn, a);
}

/* After a loss at 200 packets: 140 left, lowest RTT 10 ms, at 5 s. */
static struct cc_conn after_loss(struct cc_ack *a)
{
	struct cc_conn conn = test_conn("cubic", a);

	sample(&conn, a, 5000000, 10000);
	a->cwnd_pkts = 200;
	a->ssthresh_pkts = cc_call_loss(&conn, a);
	a->cwnd_pkts = 140;
	return conn;
}

static void roots_are_rounded_down(void)
{
	static const u32 cubes[][2] = {{0, 0}, {1, 1}, {7, 1}, {8, 2}, {26, 2}, {27, 3}, {1000, 10}};
	u32 i;

	for (i = 0; i < sizeof(cubes) / sizeof(cubes[0]); i++)
		CHECK_EQ(cc_cubic_root(cubes[i][0]), cubes[i][1]);
	/* 2^40 / 410 * 60: the cube root of 1.609e11 is 5439.04. */
	CHECK_EQ(cc_cubic_root(2681735677ull * 60), 5439);
	CHECK_EQ(cc_cubic_root(~(u64)0), 2642245);
}

/* 200 * 717 / 1024 = 140. The next loss at 140 < 200 has a maximum of 140 * (1024 + 717) / 2048 = 119. */
static void a_loss_leaves_seven_tenths(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = after_loss(&a), slow = test_conn("cubic,fast_convergence=0", &a);

	CHECK_EQ(a.ssthresh_pkts, 140);
	CHECK_EQ(test_stat(&conn, &a, "wmax_pkts"), 200);
	CHECK_EQ(cc_call_loss(&conn, &a), 98);
	CHECK_EQ(test_stat(&conn, &a, "wmax_pkts"), 119);
	a.cwnd_pkts = 200;
	cc_call_loss(&slow, &a);
	a.cwnd_pkts = 140;
	cc_call_loss(&slow, &a);
	CHECK_EQ(test_stat(&slow, &a, "wmax_pkts"), 140);
	a.cwnd_pkts = 2;
	CHECK_EQ(cc_call_loss(&slow, &a), 2);
}

/*
 * K = 5439/1024 s, and the function is taken one RTT ahead, in 1/1024 s:
 * at 0 s t = 10, 410 * 5429^3 >> 40 = 59, target 141, one packet per 140 / 1 acked;
 * at 2 s t = 2058, 410 * 3381^3 >> 40 = 14, target 186, 140 / 46 = 3;
 * at 5.302 s t = K, target 200, 140 / 60 = 2, which is the least.
 */
static void the_window_follows_the_cubic_function(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = after_loss(&a);

	ack(&conn, &a, 5000000, 1);
	CHECK_EQ(test_stat(&conn, &a, "k_ms"), 5311);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 140);
	ack(&conn, &a, 7000000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 3);
	/* The same window within 31 ms: nothing is computed. */
	ack(&conn, &a, 7031000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 3);
	ack(&conn, &a, 10302000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 2);
	ack(&conn, &a, 60000000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 2);
}

/* Before the first loss: 5 % per RTT, one packet per 20 acked. */
static void before_the_first_loss_it_grows_by_a_twentieth(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("cubic", &a);

	CHECK_EQ(ack(&conn, &a, 5000000, 19).cwnd_pkts, 20);
	CHECK_EQ(ack(&conn, &a, 5001000, 1).cwnd_pkts, 21);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 20);
}

/*
 * cwnd 14, lost at 20. Reno with this beta: one packet per 14 * 15 / 8 = 26 acked. 61 acked are two, and 9 left, so
 * its window is 16 and cnt at most 14 / 2 = 7.
 */
static void it_is_at_least_as_fast_as_reno(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("cubic", &a), alone = test_conn("cubic,tcp_friendliness=0", &a);

	sample(&conn, &a, 5000000, 10000);
	a.ssthresh_pkts = cc_call_loss(&conn, &a);
	cc_call_loss(&alone, &a);
	a.cwnd_pkts = 14;
	ack(&conn, &a, 5000000, 1);
	ack(&alone, &a, 5000000, 1);
	ack(&conn, &a, 5040000, 60);
	ack(&alone, &a, 5040000, 60);
	CHECK_EQ(test_stat(&conn, &a, "tcp_cwnd_pkts"), 16);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 7);
	CHECK(test_stat(&alone, &a, "cnt_pkts") > 7);
}

/* Samples 1 ms apart from the beginning of the round. Returns the first whose ACK ends slow start; 0 if none of 20 does. */
static u32 train(const char *scheme, u32 gap_us, u32 cwnd_pkts)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	u32 i;

	a.ssthresh_pkts = CC_INFINITE;
	a.cwnd_pkts = cwnd_pkts;
	conn = test_conn(scheme, &a);
	for (i = 1; i <= 20; i++) {
		sample(&conn, &a, 5000000 + i * gap_us, 10000);
		if (ack(&conn, &a, a.now_us, 1).ssthresh_pkts == cwnd_pkts)
			return i;
	}
	return 0;
}

/*
 * The stack's rate is 20 * 1448 B * 2 per 10 ms, four bursts of 64 KiB take 45 ms, so the allowance is 1 ms:
 * (10 + 1) ms / 2 = 5.5 ms are exceeded at 6 ms. If paced, 11 ms are exceeded at 12 ms.
 */
static void an_ack_train_of_half_an_rtt_ends_slow_start(void)
{
	CHECK_EQ(train("cubic", 1000, 20), 6);
	CHECK_EQ(train("cubic,paced=1", 1000, 20), 12);
	CHECK_EQ(train("cubic,hystart_detect=2", 1000, 20), 0);
	CHECK_EQ(train("cubic,hystart=0", 1000, 20), 0);
	CHECK_EQ(train("cubic", 2001, 20), 0); /* not a train */
	CHECK_EQ(train("cubic", 1000, 15), 0); /* hystart_low_window */
}

/* ssthresh becomes cwnd at the ninth sample of a round whose lowest RTT exceeds 10 ms by more than 4 ms. */
static u32 risen(u32 rtt_us)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	u32 i;

	a.ssthresh_pkts = CC_INFINITE;
	conn = test_conn("cubic,hystart_detect=2", &a);
	sample(&conn, &a, 5001000, 10000);
	a.una_seq = a.nxt_seq + 1;
	a.nxt_seq = a.una_seq + 20 * a.mss_bytes;
	for (i = 1; i <= 12; i++) {
		sample(&conn, &a, 5010000 + i, rtt_us);
		if (test_stat(&conn, &a, "hystart_found"))
			break;
	}
	/* Slow start reaches ssthresh. The rest of the ACK is for congestion avoidance, which the window does not limit. */
	a.flags = CC_CWND_LIMITED;
	CHECK_EQ(ack(&conn, &a, a.now_us, 2).cwnd_pkts, i <= 12 ? 20 : 22);
	return i;
}

static void a_risen_delay_ends_slow_start(void)
{
	CHECK_EQ(risen(14001), 9);
	CHECK_EQ(risen(14000), 13);
}

/* Sent at 5.09 s, idle until 6.09 s: the epoch begins one second later, so 8 s is like 7 s above. */
static void idle_time_is_not_growth(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = after_loss(&a);
	struct cc_out out;

	ack(&conn, &a, 5000000, 1);
	sample(&conn, &a, 5100000, 10000);
	a.now_us = 6090000;
	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	ack(&conn, &a, 8000000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 3);
	/* Never later than now. */
	a.now_us = 90000000;
	cc_call_event(&conn, CC_EVENT_TX_START, &a, &out);
	ack(&conn, &a, 90000000, 1);
	CHECK_EQ(test_stat(&conn, &a, "cnt_pkts"), 140);
}

/* Within a second after the beginning of the epoch, no RTT counts. */
static void delays_after_a_reduction_are_ignored(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = after_loss(&a);

	ack(&conn, &a, 5000000, 1);
	sample(&conn, &a, 5999000, 5000);
	CHECK_EQ(test_stat(&conn, &a, "delay_min_us"), 10000);
	sample(&conn, &a, 6000000, 5000);
	CHECK_EQ(test_stat(&conn, &a, "delay_min_us"), 5000);
}

static void a_timeout_forgets_everything(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = after_loss(&a);
	struct cc_out out;

	cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
	CHECK_EQ(test_stat(&conn, &a, "wmax_pkts"), 0);
	CHECK_EQ(test_stat(&conn, &a, "delay_min_us"), 0);
	a.prior_cwnd_pkts = 200;
	CHECK_EQ(cc_call_undo(&conn, &a), 200);
}

static void parameters_have_the_kernels_names(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn;
	struct cc_out out;
	char message[256];

	CHECK_EQ((u32)cc_conn_parse(&conn, "cubic,hystart=0,initial_ssthresh=33", message, sizeof(message)), 0);
	cc_call_init(&conn, &a, &out);
	CHECK_EQ(out.ssthresh_pkts, 33);
	test_refused("cubic,beta=1024", "cubic: parameter beta = 1024: allowed are 1 to 1023 (1/1024)");
}

int main(void)
{
	roots_are_rounded_down();
	a_loss_leaves_seven_tenths();
	the_window_follows_the_cubic_function();
	before_the_first_loss_it_grows_by_a_twentieth();
	it_is_at_least_as_fast_as_reno();
	an_ack_train_of_half_an_rtt_ends_slow_start();
	a_risen_delay_ends_slow_start();
	idle_time_is_not_growth();
	delays_after_a_reduction_are_ignored();
	a_timeout_forgets_everything();
	parameters_have_the_kernels_names();
	return test_done("cubic");
}
