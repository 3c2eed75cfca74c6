/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

struct field {
	const char *name;
	size_t offset;
};
#define FIELD(name) {#name, offsetof(struct cc_ack, name)}

static const struct field fields[] = {
	FIELD(rtt_us), FIELD(srtt_us), FIELD(mdev_us), FIELD(rtt_min_us), FIELD(acked_pkts),
	FIELD(lost_pkts), FIELD(inflight_pkts), FIELD(prior_inflight_pkts),
	FIELD(cwnd_pkts), FIELD(ssthresh_pkts), FIELD(cwnd_clamp_pkts), FIELD(prior_cwnd_pkts),
	FIELD(una_seq), FIELD(nxt_seq), FIELD(delivered_pkts), FIELD(delivered_ce_pkts),
	FIELD(total_lost_pkts), FIELD(rate_prior_delivered_pkts),
	FIELD(rate_delivered_pkts), FIELD(rate_delivered_ce_pkts), FIELD(rate_interval_us), FIELD(edt_delay_us),
	FIELD(mss_bytes), FIELD(mtu_bytes), FIELD(random),
	FIELD(ca_state), FIELD(flags),
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static u32 *field_of(struct cc_ack *a, size_t i)
{
	return (u32 *)((char *)a + fields[i].offset);
}

void replay_header(FILE *out, const struct cc_conn *conn, const char *scheme)
{
	size_t i;
	u32 k;

	fprintf(out, "# cc %s\ncall,now_us,pacing_bytes_per_sec", scheme);
	for (i = 0; i < FIELDS; i++)
		fprintf(out, ",%s", fields[i].name);
	fprintf(out, ",to_cwnd_pkts,to_ssthresh_pkts,to_pacing_bytes_per_sec,to_flags");
	for (k = 0; k < conn->ops->stat_count; k++)
		fprintf(out, ",stat_%s", conn->ops->stats[k].name);
	fputc('\n', out);
}

void replay_row(void *context, const struct cc_ack *a, const struct cc_answer *answer)
{
	struct replay_writer *w = context;
	struct cc_ack copy = *a;
	u32 stats[CC_PARAMS_MAX] = {0}, k;
	size_t i;

	if (!w->left)
		return;
	w->left--;
	if (answer->call == CALL_EVENT)
		fprintf(w->out, "%s", cc_event_names[answer->event]);
	else
		fprintf(w->out, "%s", cc_call_names[answer->call]);
	fprintf(w->out, ",%llu,%llu", (unsigned long long)a->now_us,
		(unsigned long long)a->pacing_bytes_per_sec);
	for (i = 0; i < FIELDS; i++)
		fprintf(w->out, ",%u", *field_of(&copy, i));
	fprintf(w->out, ",%u,%u,%llu,%u", answer->out.cwnd_pkts, answer->out.ssthresh_pkts,
		(unsigned long long)answer->out.pacing_bytes_per_sec, answer->out.flags);
	cc_call_read(w->conn, a, stats);
	for (k = 0; k < w->conn->ops->stat_count; k++)
		fprintf(w->out, ",%u", stats[k]);
	fputc('\n', w->out);
}

struct script {
	struct cc_conn conn;
	struct replay_writer writer;
	struct cc_ack a;
	u64 seed;
	u32 dt_us;
	u32 ce_pkts;
	int started;
	char *message;
	size_t size;
};

static int complain(struct script *s, const char *what, const char *text)
{
	snprintf(s->message, s->size, "%s \"%s\"", what, text);
	return -1;
}

/* Parses the rest of a line, "field=value ...", into *a. */
static int set_fields(struct script *s, struct cc_ack *a, char *rest)
{
	char *word, *save = NULL;

	for (word = strtok_r(rest, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
		char *equals = strchr(word, '='), *end;
		unsigned long value;
		size_t i;

		if (!equals)
			return complain(s, "write field=value, not", word);
		*equals = 0;
		value = strtoul(equals + 1, &end, 10);
		if (*end || end == equals + 1)
			return complain(s, "not a number:", equals + 1);
		if (!strcmp(word, "ce")) {
			s->ce_pkts = (u32)value;
			continue;
		}
		if (!strcmp(word, "dt_us")) {
			s->dt_us = (u32)value;
			continue;
		}
		for (i = 0; i < FIELDS; i++)
			if (!strcmp(fields[i].name, word))
				break;
		if (i == FIELDS)
			return complain(s, "no field", word);
		*field_of(a, i) = (u32)value;
	}
	return 0;
}

static void apply_out(struct script *s, const struct cc_out *out)
{
	s->a.cwnd_pkts = out->cwnd_pkts;
	s->a.ssthresh_pkts = out->ssthresh_pkts;
	if (out->pacing_bytes_per_sec)
		s->a.pacing_bytes_per_sec = out->pacing_bytes_per_sec;
}

static int one_ack(struct script *s, char *rest)
{
	struct cc_ack a;
	struct cc_out out;

	s->a.now_us += s->dt_us;
	a = s->a;
	if (set_fields(s, &a, rest))
		return -1;
	a.una_seq += a.acked_pkts * a.mss_bytes;
	a.nxt_seq = a.una_seq + a.cwnd_pkts * a.mss_bytes;
	a.inflight_pkts = cc_saturating_sub(a.cwnd_pkts, a.acked_pkts);
	a.prior_inflight_pkts = a.cwnd_pkts;
	a.rate_prior_delivered_pkts = a.delivered_pkts - a.cwnd_pkts;
	a.delivered_pkts += a.acked_pkts;
	a.delivered_ce_pkts += cc_min(s->ce_pkts, a.acked_pkts);
	a.total_lost_pkts += a.lost_pkts;
	if (a.rtt_us && !a.rate_interval_us) {
		a.rate_interval_us = a.rtt_us;
		a.rate_delivered_pkts = a.cwnd_pkts;
	}
	if (a.acked_pkts)
		a.rate_delivered_ce_pkts = cc_scale(a.rate_delivered_pkts, cc_min(s->ce_pkts, a.acked_pkts), a.acked_pkts);
	a.random = cc_random(&s->seed);
	s->a.una_seq = a.una_seq;
	s->a.nxt_seq = a.nxt_seq;
	s->a.delivered_pkts = a.delivered_pkts;
	s->a.delivered_ce_pkts = a.delivered_ce_pkts;
	s->a.total_lost_pkts = a.total_lost_pkts;
	cc_call_sample(&s->conn, &a);
	cc_call_ack(&s->conn, &a, &out);
	apply_out(s, &out);
	return 0;
}

static int start(struct script *s, const char *scheme, FILE *out)
{
	if (cc_conn_parse(&s->conn, scheme, s->message, s->size))
		return -1;
	s->writer = (struct replay_writer){out, &s->conn, 0xffffffffu};
	s->conn.trace = replay_row;
	s->conn.trace_context = &s->writer;
	replay_header(out, &s->conn, scheme);
	s->started = 1;
	return 0;
}

static int one_line(struct script *s, char *line, FILE *out)
{
	char *rest = line + strcspn(line, " \t"), *again;
	struct cc_out answer;
	u32 i, times = 1;

	if (*rest)
		*rest++ = 0;
	if (!strcmp(line, "cc"))
		return start(s, rest, out);
	if (!s->started)
		return complain(s, "a script begins with cc, not with", line);
	if (!strcmp(line, "set"))
		return set_fields(s, &s->a, rest);
	if (!strcmp(line, "repeat")) {
		times = (u32)strtoul(rest, &again, 10);
		if (strncmp(again, " ack", 4) || times > 1000000)
			return complain(s, "write: repeat N ack ..., not", rest);
		line = (char *)"ack";
		rest = again + 4;
	}
	if (!strcmp(line, "ack")) {
		for (i = 0; i < times; i++) {
			char copy[512];

			snprintf(copy, sizeof(copy), "%s", rest);
			if (one_ack(s, copy))
				return -1;
		}
		return 0;
	}
	if (!strcmp(line, "init")) {
		cc_call_init(&s->conn, &s->a, &answer);
		apply_out(s, &answer);
		return 0;
	}
	if (!strcmp(line, "loss")) {
		s->a.prior_cwnd_pkts = s->a.cwnd_pkts;
		s->a.ssthresh_pkts = cc_call_loss(&s->conn, &s->a);
		return 0;
	}
	if (!strcmp(line, "undo")) {
		s->a.cwnd_pkts = cc_call_undo(&s->conn, &s->a);
		return 0;
	}
	if (strcmp(line, "event"))
		return complain(s, "no such call:", line);
	for (i = 0; i < CC_EVENTS; i++) {
		if (strcmp(cc_event_names[i], rest))
			continue;
		cc_call_event(&s->conn, i, &s->a, &answer);
		apply_out(s, &answer);
		if (i <= CC_EVENT_LOSS)
			s->a.ca_state = i;
		return 0;
	}
	return complain(s, "no such event:", rest);
}

int replay_script(const char *path, FILE *out, char *message, size_t size)
{
	struct script s = {.seed = 1, .dt_us = 100, .message = message, .size = size};
	char line[1024], problem[512];
	FILE *in = fopen(path, "r");
	u32 number = 0;
	int bad = 0;

	if (!in) {
		snprintf(message, size, "cannot read %s", path);
		return -1;
	}
	s.a = (struct cc_ack){
		.cwnd_pkts = 10, .ssthresh_pkts = CC_INFINITE, .cwnd_clamp_pkts = 100000,
		.acked_pkts = 1, .mss_bytes = 1448, .mtu_bytes = 1500, .flags = CC_CWND_LIMITED | CC_CWND_FULL,
		.una_seq = 0xffff0000u, .nxt_seq = 0xffff0000u, .now_us = 1000000,
	};
	s.message = problem;
	s.size = sizeof(problem);
	while (!bad && fgets(line, sizeof(line), in)) {
		size_t length = strcspn(line, "#\n");

		number++;
		while (length && (line[length - 1] == ' ' || line[length - 1] == '\t'))
			length--;
		line[length] = 0;
		if (*line && one_line(&s, line, out)) {
			snprintf(message, size, "%s:%u: %s", path, number, problem);
			bad = -1;
		}
	}
	fclose(in);
	return bad;
}

static int call_from_row(struct cc_conn *conn, const char *name, const struct cc_ack *a,
			 struct cc_out *out)
{
	u32 i;

	cc_keep(a, out);
	for (i = 0; i < CC_EVENTS; i++)
		if (!strcmp(cc_event_names[i], name)) {
			cc_call_event(conn, i, a, out);
			return 0;
		}
	if (!strcmp(name, "init"))
		cc_call_init(conn, a, out);
	else if (!strcmp(name, "sample"))
		out->flags = cc_call_sample(conn, a);
	else if (!strcmp(name, "ack"))
		cc_call_ack(conn, a, out);
	else if (!strcmp(name, "loss"))
		out->ssthresh_pkts = cc_call_loss(conn, a);
	else if (!strcmp(name, "undo"))
		out->cwnd_pkts = cc_call_undo(conn, a);
	else
		return -1;
	return 0;
}

/* Replays one row. Returns 0 if outputs and stats are those in the row. */
static int check_row(struct cc_conn *conn, char *line)
{
	char *save = NULL, *name = strtok_r(line, ",", &save);
	u64 value[2 + FIELDS + 4 + CC_PARAMS_MAX] = {0};
	u32 count = 0, k, stats[CC_PARAMS_MAX] = {0};
	struct cc_ack a = {0};
	struct cc_out out;
	const u64 *to = value + 2 + FIELDS;
	char *word;
	size_t i;

	while (name && count < sizeof(value) / sizeof(value[0]) && (word = strtok_r(NULL, ",", &save)))
		value[count++] = strtoull(word, NULL, 10);
	if (!name || count != 2 + FIELDS + 4 + conn->ops->stat_count)
		return -1;
	a.now_us = value[0];
	a.pacing_bytes_per_sec = value[1];
	for (i = 0; i < FIELDS; i++)
		*field_of(&a, i) = (u32)value[2 + i];
	if (call_from_row(conn, name, &a, &out))
		return -1;
	if (out.cwnd_pkts != to[0] || out.ssthresh_pkts != to[1] || out.pacing_bytes_per_sec != to[2] ||
	    out.flags != to[3])
		return -1;
	cc_call_read(conn, &a, stats);
	for (k = 0; k < conn->ops->stat_count; k++)
		if (stats[k] != to[4 + k])
			return -1;
	return 0;
}

int replay_golden(const char *path, char *message, size_t size)
{
	struct cc_conn conn;
	FILE *in = fopen(path, "r");
	char line[4096];
	u32 number = 2;
	int bad = 0;

	if (!in || !fgets(line, sizeof(line), in) || strncmp(line, "# cc ", 5)) {
		snprintf(message, size, "%s: cannot be read, or does not begin with \"# cc\"", path);
		if (in)
			fclose(in);
		return -1;
	}
	line[strcspn(line, "\n")] = 0;
	bad = cc_conn_parse(&conn, line + 5, message, size) || !fgets(line, sizeof(line), in);
	while (!bad && fgets(line, sizeof(line), in)) {
		number++;
		line[strcspn(line, "\n")] = 0;
		bad = check_row(&conn, line);
		if (bad)
			snprintf(message, size, "%s:%u: the core's answer differs", path, number);
	}
	fclose(in);
	return bad ? -1 : 0;
}
