/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The command line of ccsim. All output is CSV except for the table of "e1". */
#include <stdlib.h>
#include <string.h>

#include "e1.h"
#include "replay.h"
#include "sim.h"

static const char usage[] =
	"ccsim run [rate_bps=N delay_us=N queue_bytes=N mark_us=N jitter_us=N seed=N end_us=N sample_us=N\n"
	"           record=FLOW rows=N] SCHEME[,param=N...][@start_us-stop_us][+extra_delay_us] ...\n"
	"                        simulate flows; samples as CSV, or the calls of flow record=FLOW\n"
	"ccsim state [as run]    the cores' inner state, one row per round or state, flow and value\n"
	"ccsim replay SCRIPT     answer an ack script\n"
	"ccsim recheck GOLDEN    feed a golden file's inputs again and compare the outputs\n"
	"ccsim e1 [phase_us=N trials=N scheme=NAME]\n"
	"                        coexistence with CUBIC: every scheme at 1v1, 5v5, 10v1\n"
	"ccsim params            parameters of every core with units and ranges\n"
	"ccsim schemes           named schemes and their parameters\n";

static int fail(const char *message)
{
	fprintf(stderr, "ccsim: %s\n", message);
	return 2;
}

struct options {
	struct sim_path path;
	u64 end_us, sample_us, record, rows, phase_us, trials;
	const char *scheme;
	struct sim_flow_config flows[SIM_FLOWS_MAX];
	const char *names[SIM_FLOWS_MAX];
	u32 count;
};

static void sample(void *context, u64 now_us, struct sim *sim)
{
	const struct options *o = context;
	u32 i;

	for (i = 0; i < sim_flow_count(sim); i++) {
		struct sim_flow_view v = sim_view(sim, i);

		printf("%llu,%u,%s,%u,%u,%u,%u,%llu,%llu,%llu,%u,%u\n", (unsigned long long)now_us, i,
		       o->names[i], v.cwnd_pkts, v.ssthresh_pkts, v.srtt_us, v.inflight_pkts,
		       (unsigned long long)v.delivered_pkts * SIM_MSS,
		       (unsigned long long)v.retransmitted_pkts, (unsigned long long)v.marked_pkts,
		       v.timeouts, sim_queue_bytes(sim));
	}
}

static void on_round(void *context, u64 now_us, u32 flow, const struct cc_conn *conn,
		     const struct cc_ack *a)
{
	u32 stats[CC_PARAMS_MAX], k;

	(void)context;
	cc_call_read(conn, a, stats);
	for (k = 0; k < conn->ops->stat_count; k++)
		printf("%llu,%u,%s,%s,%u,%s\n", (unsigned long long)now_us, flow, conn->ops->name,
		       conn->ops->stats[k].name, stats[k], conn->ops->stats[k].unit);
}

static int add_flow(struct options *o, char *text)
{
	struct sim_flow_config *f = &o->flows[o->count];
	char *at = strchr(text, '@'), *plus = strchr(text, '+'), message[256];

	if (o->count == SIM_FLOWS_MAX)
		return fail("too many flows");
	f->stop_us = ~(u64)0 / 1000;
	if (at) {
		char *dash = strchr(at, '-');

		f->start_us = strtoull(at + 1, NULL, 10);
		if (dash)
			f->stop_us = strtoull(dash + 1, NULL, 10);
		*at = 0;
	}
	if (plus) {
		f->extra_delay_us = (u32)strtoul(plus + 1, NULL, 10);
		*plus = 0;
	}
	if (cc_conn_parse(&f->conn, text, message, sizeof(message)))
		return fail(message);
	o->names[o->count++] = text;
	return 0;
}

static int parse(struct options *o, int argc, char **argv)
{
	struct {
		const char *name;
		u64 *value;
	} keys[] = {{"end_us", &o->end_us},   {"sample_us", &o->sample_us}, {"record", &o->record},
		    {"rows", &o->rows},	      {"phase_us", &o->phase_us},   {"trials", &o->trials},
		    {"seed", &o->path.seed},  {"rate_bps", &o->path.rate_bps}};
	struct {
		const char *name;
		u32 *value;
	} small[] = {{"delay_us", &o->path.delay_us},
		     {"queue_bytes", &o->path.queue_bytes},
		     {"mark_us", &o->path.mark_us},
		     {"jitter_us", &o->path.jitter_us}};
	int i;

	for (i = 0; i < argc; i++) {
		char *equals = strchr(argv[i], '='), *comma = strchr(argv[i], ',');
		u64 value;
		size_t k, length;
		int known = 0;

		if (!equals || (comma && comma < equals)) {
			if (add_flow(o, argv[i]))
				return 2;
			continue;
		}
		length = (size_t)(equals - argv[i]);
		if (length == 6 && !strncmp(argv[i], "scheme", 6)) {
			o->scheme = equals + 1;
			continue;
		}
		value = strtoull(equals + 1, NULL, 10);
		for (k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (strlen(keys[k].name) == length && !strncmp(keys[k].name, argv[i], length))
				*keys[k].value = value, known = 1;
		for (k = 0; k < sizeof(small) / sizeof(small[0]); k++)
			if (strlen(small[k].name) == length && !strncmp(small[k].name, argv[i], length))
				*small[k].value = (u32)value, known = 1;
		if (!known)
			return fail(argv[i]);
	}
	if (!o->path.rate_bps || !o->sample_us)
		return fail("rate_bps and sample_us must not be 0");
	return 0;
}

static int run(struct options *o, int state)
{
	struct sim_observer observer = {.context = o, .sample_us = (u32)o->sample_us};
	struct replay_writer writer = {.out = stdout, .left = (u32)o->rows};
	struct sim *sim;
	u32 i;

	if (!o->count)
		return fail("no flow given");
	if (o->record < o->count) {
		replay_header(stdout, &o->flows[o->record].conn, o->names[o->record]);
		o->flows[o->record].conn.trace = replay_row;
		o->flows[o->record].conn.trace_context = &writer;
	} else if (state) {
		observer.round = on_round;
		printf("time_us,flow,core,name,value,unit\n");
	} else {
		observer.sample = sample;
		printf("time_us,flow,scheme,cwnd_pkts,ssthresh_pkts,srtt_us,inflight_pkts,delivered_bytes,"
		       "retransmitted_pkts,marked_pkts,timeouts,queue_bytes\n");
	}
	sim = sim_new(&o->path, &observer);
	for (i = 0; i < o->count; i++) {
		u32 flow = sim_add(sim, &o->flows[i]);

		if (flow == o->record)
			writer.conn = (struct cc_conn *)sim_view(sim, flow).conn;
	}
	sim_run(sim, o->end_us);
	sim_free(sim);
	return 0;
}

static int params(void)
{
	u32 count, i, k;
	const struct cc_ops *const *all = cc_all(&count);

	printf("core,parameter,unit,default,min,max,meaning\n");
	for (i = 0; i < count; i++)
		for (k = 0; k < all[i]->param_count; k++)
			printf("%s,%s,%s,%u,%u,%u,\"%s\"\n", all[i]->name, all[i]->params[k].name,
			       all[i]->params[k].unit, all[i]->params[k].default_value, all[i]->params[k].min,
			       all[i]->params[k].max, all[i]->params[k].doc);
	return 0;
}

static int schemes(void)
{
	u32 count, i;
	const struct cc_scheme *all = cc_schemes(&count);

	printf("scheme,core,parameters\n");
	for (i = 0; i < count; i++)
		printf("%s,%s,\"%s\"\n", all[i].name, all[i].core, all[i].preset);
	return 0;
}

int main(int argc, char **argv)
{
	struct options *o = calloc(1, sizeof(*o));
	const char *command = argc > 1 ? argv[1] : "";
	char message[1024];
	int result = 2;

	if (!o)
		abort();
	o->path = (struct sim_path){100000000, 10000, 187500, 0, 50, 1};
	o->end_us = 10000000;
	o->sample_us = 100000;
	o->record = SIM_FLOWS_MAX;
	o->rows = 1000;
	o->phase_us = 20000000;
	o->trials = 1;
	if (!strcmp(command, "replay") && argc == 3) {
		result = replay_script(argv[2], stdout, message, sizeof(message));
		result = result ? fail(message) : 0;
	} else if (!strcmp(command, "recheck") && argc == 3) {
		result = replay_golden(argv[2], message, sizeof(message));
		result = result ? fail(message) : 0;
	} else if (!strcmp(command, "params")) {
		result = params();
	} else if (!strcmp(command, "schemes")) {
		result = schemes();
	} else if (!strcmp(command, "run") || !strcmp(command, "state")) {
		result = parse(o, argc - 2, argv + 2) ? 2 : run(o, *command == 's');
	} else if (!strcmp(command, "e1")) {
		result = parse(o, argc - 2, argv + 2) ? 2 : e1_table(o->phase_us, (u32)o->trials, o->scheme);
	} else {
		fputs(usage, stderr);
	}
	free(o);
	return result;
}
