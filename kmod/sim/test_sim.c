/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "sim.h"
#include "test.h"

static const struct sim_path e1_path = {100000000, 10000, 187500, 0, 0, 1};

static u32 add(struct sim *sim, const char *scheme, u64 start_us)
{
	struct sim_flow_config config = {.start_us = start_us, .stop_us = 1000000000};
	char message[256];

	if (cc_conn_parse(&config.conn, scheme, message, sizeof(message))) {
		fprintf(stderr, "%s\n", message);
		exit(1);
	}
	return sim_add(sim, &config);
}

/*
 * A full link carries 10^8 / (1514 * 8) = 8256.27 packets/s. A Reno flow that always keeps the queue filled delivers that many, minus those
 * of the 10 ms before the first ACK and of its slow start.
 */
static void a_full_link_carries_its_rate(void)
{
	struct sim *sim = sim_new(&e1_path, NULL);
	u64 before;

	add(sim, "reno", 0);
	sim_run(sim, 2000000);
	before = sim_view(sim, 0).delivered_pkts;
	sim_run(sim, 12000000);
	CHECK(sim_view(sim, 0).delivered_pkts - before >= 82560);
	CHECK(sim_view(sim, 0).delivered_pkts - before <= 82564);
	CHECK_EQ(sim_view(sim, 0).timeouts, 0);
	sim_free(sim);
}

/* 1514 B at 100 Mbit/s take 121.12 us. With 10 ms on the path, the RTT of a lone packet is 10121 us. */
static void an_empty_path_shows_its_delay(void)
{
	struct sim_path path = e1_path;
	struct sim *sim;

	path.rate_bps = 100000000;
	sim = sim_new(&path, NULL);
	add(sim, "vegas", 0);
	sim_run(sim, 10125);
	CHECK_EQ(sim_view(sim, 0).srtt_us, 10121);
	sim_free(sim);
}

/*
 * At most 187500 / 1514 = 123 packets wait and one is on the wire: 124 * 121.12 us + 10 ms = 25.019 ms. The ACK waits for a second packet,
 * 121.12 us later. Reno alone reaches this before each loss and never exceeds it.
 */
static void a_full_queue_adds_its_length(void)
{
	struct sim *sim = sim_new(&e1_path, NULL);
	u32 highest = 0, i;

	add(sim, "reno", 0);
	for (i = 1; i <= 2000; i++) {
		sim_run(sim, i * 10000ull);
		highest = cc_max(highest, sim_view(sim, 0).srtt_us);
	}
	CHECK(highest > 24000 && highest <= 25141);
	CHECK(sim_view(sim, 0).dropped_pkts > 0);
	CHECK_EQ(sim_view(sim, 0).dropped_pkts, sim_view(sim, 0).retransmitted_pkts);
	sim_free(sim);
}

static void the_same_seed_gives_the_same_packets(void)
{
	struct sim_path path = e1_path;
	u64 first[2] = {0, 0};
	int again;

	path.jitter_us = 50;
	for (again = 0; again < 2; again++) {
		struct sim *sim = sim_new(&path, NULL);

		add(sim, "vegas", 0);
		add(sim, "cubic", 500000);
		sim_run(sim, 5000000);
		if (again) {
			CHECK_EQ(sim_view(sim, 0).sent_pkts, first[0]);
			CHECK_EQ(sim_view(sim, 1).sent_pkts, first[1]);
		}
		first[0] = sim_view(sim, 0).sent_pkts;
		first[1] = sim_view(sim, 1).sent_pkts;
		sim_free(sim);
	}
}

/*
 * With a queue of one packet, and one on the wire, all but two packets of a burst are lost: of the initial window, and whenever the window
 * exceeds two. A window of two, acknowledged by one ACK, is 200 packets/s.
 */
static void a_queue_of_one_packet_is_survived(void)
{
	struct sim_path path = e1_path;
	struct sim *sim;

	path.queue_bytes = 1514;
	sim = sim_new(&path, NULL);
	add(sim, "reno", 0);
	sim_run(sim, 20000000);
	CHECK(sim_view(sim, 0).delivered_pkts > 3000);
	sim_free(sim);
}

/* Calls to a flow's congestion control: ACKs, packets acknowledged, and ACKs with each flag. */
struct calls {
	u32 acks, pkts, full, limited, room;
};

static void count_call(void *context, const struct cc_ack *a, const struct cc_answer *answer)
{
	struct calls *c = context;

	if (answer->call != CALL_ACK)
		return;
	c->acks++;
	c->pkts += a->acked_pkts;
	c->full += (a->flags & CC_CWND_FULL) != 0;
	c->limited += (a->flags & CC_CWND_LIMITED) != 0;
	c->room += a->inflight_pkts * 2 < a->cwnd_pkts;
}

static struct calls calls_of(const char *scheme, u64 end_us)
{
	struct sim_flow_config config = {.stop_us = 1000000000};
	struct sim *sim = sim_new(&e1_path, NULL);
	struct calls calls = {0};
	char message[256];

	CHECK_EQ((u32)cc_conn_parse(&config.conn, scheme, message, sizeof(message)), 0);
	config.conn.trace = count_call;
	config.conn.trace_context = &calls;
	sim_add(sim, &config);
	sim_run(sim, end_us);
	sim_free(sim);
	return calls;
}

/* Every second packet is acknowledged, except for the first 16 and those around losses. */
static void acks_are_delayed(void)
{
	struct calls calls = calls_of("vegas", 5000000);

	CHECK(calls.pkts > 30000);
	CHECK(calls.acks > calls.pkts / 2 && calls.acks < calls.pkts / 2 + 100);
}

/*
 * Vegas fills its window. BBR paces at twice its window's rate, has less in flight, and its ssthresh is infinite until the pipe is full:
 * tcp_is_cwnd_limited() holds in half of its startup, is_cwnd_limited seldom.
 */
static void a_paced_flow_is_not_limited_by_its_window(void)
{
	struct calls vegas = calls_of("vegas", 5000000), bbr = calls_of("bbr3", 5000000);

	CHECK(vegas.full > vegas.acks * 9 / 10);
	CHECK(bbr.room > 0);
	CHECK(bbr.full < bbr.acks / 10);
	CHECK(bbr.limited >= bbr.full);
}

/* At 1 Gbit/s and 10 ms, a burst is a millisecond of at most 64 KiB, 44 segments, which wait for each other. */
static void packets_leave_in_bursts(void)
{
	struct sim_path path = {1000000000, 10000, 12500000, 0, 0, 1};
	struct sim *sim = sim_new(&path, NULL);
	u32 deepest = 0, i;

	add(sim, "bbr3", 0);
	sim_run(sim, 2000000);
	for (i = 1; i <= 3000; i++) {
		sim_run(sim, 2000000 + i * 100ull);
		deepest = cc_max(deepest, sim_queue_bytes(sim));
	}
	CHECK(deepest > 20 * SIM_FRAME);
	sim_free(sim);
}

static void a_state_begins_at_the_start(void *state, const u32 *params, u32 event, const struct cc_ack *a,
					struct cc_out *out)
{
	(void)state;
	(void)params;
	cc_keep(a, out);
	out->cwnd_pkts = 7;
	out->flags = event == CC_EVENT_TX_START ? CC_OUT_STATE : 0;
}

static void count_row(void *context, u64 now_us, u32 flow, const struct cc_conn *conn, const struct cc_ack *a)
{
	u32 *rows = context;

	(void)conn;
	CHECK_EQ(now_us, 500);
	CHECK_EQ(flow, 1);
	CHECK_EQ(a->cwnd_pkts, 7); /* as the core set it */
	(*rows)++;
}

/* As in the kernel, the answer to an event also has a row. Before the first ACK there are no other calls. */
static void an_event_that_begins_a_state_has_a_row(void)
{
	u32 rows = 0;
	struct sim_observer observer = {.context = &rows, .round = count_row};
	struct sim *sim = sim_new(&e1_path, &observer);
	struct sim_flow_config config = {.start_us = 500, .stop_us = 1000000000};
	struct cc_ops ops = *cc_find("reno");
	char message[256];

	add(sim, "reno", 900000);
	CHECK_EQ((u32)cc_conn_parse(&config.conn, "reno", message, sizeof(message)), 0);
	ops.on_event = a_state_begins_at_the_start;
	config.conn.ops = &ops;
	sim_add(sim, &config);
	sim_run(sim, 5000);
	CHECK_EQ(rows, 1);
	sim_free(sim);
}

int main(void)
{
	a_full_link_carries_its_rate();
	an_empty_path_shows_its_delay();
	a_full_queue_adds_its_length();
	the_same_seed_gives_the_same_packets();
	a_queue_of_one_packet_is_survived();
	acks_are_delayed();
	a_paced_flow_is_not_limited_by_its_window();
	packets_leave_in_bursts();
	an_event_that_begins_a_state_has_a_row();
	return test_done("sim");
}
