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
 * A full link carries 10^8 / (1514 * 8) = 8256.27 packets/s. A Reno flow that always keeps the queue filled
 * delivers that many, less the 10 ms before the first ack and its slow start.
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
	CHECK(sim_view(sim, 0).delivered_pkts - before <= 82563);
	CHECK_EQ(sim_view(sim, 0).timeouts, 0);
	sim_free(sim);
}

/* 1514 B at 100 Mbit/s take 121.12 us; with 10 ms on the path the lone packet's RTT is 10121 us. */
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
 * 187500 / 1514 = 123 packets wait at most, one is on the wire: 124 * 121.12 us + 10 ms = 25.019 ms. Reno
 * alone reaches it before each loss and never exceeds it.
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
	CHECK(highest > 24000 && highest <= 25020);
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

/* A queue of one packet loses most of the initial window; the flow still gets everything through. */
static void a_queue_of_one_packet_is_survived(void)
{
	struct sim_path path = e1_path;
	struct sim *sim;

	path.queue_bytes = 1514;
	sim = sim_new(&path, NULL);
	add(sim, "reno", 0);
	sim_run(sim, 20000000);
	CHECK(sim_view(sim, 0).delivered_pkts > 20000);
	sim_free(sim);
}

int main(void)
{
	a_full_link_carries_its_rate();
	an_empty_path_shows_its_delay();
	a_full_queue_adds_its_length();
	the_same_seed_gives_the_same_packets();
	a_queue_of_one_packet_is_survived();
	return test_done("sim");
}
