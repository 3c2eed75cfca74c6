/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes schemes.json: the tables of all cores and schemes, for programs in other languages. */
#include <string.h>

#include "host.h"
#include "../core/schemes.h"

struct rule {
	const char *param, *when, *holds, *message;
};

#define RULE(param, when, holds, message) {#param, #when, #holds, message},
#define RULES_OF(NAME, RULES)                                                                      \
	static const struct rule NAME##_rules[] = {RULES(RULE){0}};

RULES_OF(vegas, CC_VEGAS_RULES)
RULES_OF(ta, CC_TA_RULES)
RULES_OF(cx, CC_CX_RULES)
RULES_OF(dctcp, CC_DCTCP_RULES)
RULES_OF(prague, CC_PRAGUE_RULES)
RULES_OF(bbr2, CC_BBR2_RULES)
RULES_OF(bbr3, CC_BBR3_RULES)

#define CORE(NAME, WANTS) {#NAME, WANTS, NAME##_rules},
static const struct {
	const char *name;
	u32 wants;
	const struct rule *rules;
} cores[] = {CC_CORES(CORE)};

static const char *json_bool(u32 value)
{
	return value ? "true" : "false";
}

/* Writes an operand of a rule: the name of a parameter, or a number. */
static void operand(const char *text, size_t length)
{
	if (length > 3 && !strncmp(text, "p->", 3))
		printf("\"%.*s\"", (int)length - 3, text + 3);
	else
		printf("%.*s", (int)length, text);
}

static void print_rules(const struct rule *rules)
{
	const char *comma = "";

	printf("     \"rules\": [");
	for (; rules->param; rules++) {
		size_t left = strcspn(rules->holds, " ");
		const char *relation = rules->holds + left + 1;
		size_t length = strcspn(relation, " ");
		const char *right = relation + length + 1;

		printf("%s\n      {\"param\": \"%s\", \"when\": ", comma, rules->param);
		if (strcmp(rules->when, "1"))
			operand(rules->when, strlen(rules->when));
		else
			printf("null");
		printf(", \"left\": ");
		operand(rules->holds, left);
		printf(", \"relation\": \"%.*s\", \"right\": ", (int)length, relation);
		operand(right, strlen(right));
		printf(", \"message\": \"%s\"}", rules->message);
		comma = ",";
	}
	printf("],\n");
}

static void print_core(const struct cc_ops *ops, u32 wants, const struct rule *rules)
{
	u32 k;

	printf("    {\"name\": \"%s\", \"owns_cwnd\": %s, \"wants_ecn\": %s, \"may_want_ecn\": %s, \"wants_ect1\": %s, \"wants_pacing\": %s,\n",
	       ops->name, json_bool(wants & CC_OWNS_CWND), json_bool(wants & CC_WANTS_ECN), json_bool(wants & CC_MAY_WANT_ECN),
	       json_bool(wants & CC_WANTS_ECT1), json_bool(wants & CC_WANTS_PACING));
	printf("     \"params\": [");
	for (k = 0; k < ops->param_count; k++) {
		const struct cc_param *p = &ops->params[k];

		printf("%s\n      {\"name\": \"%s\", \"unit\": \"%s\", \"default\": %u, \"min\": %u, \"max\": %u, \"doc\": \"%s\"}",
		       k ? "," : "", p->name, p->unit, p->default_value, p->min, p->max, p->doc);
	}
	printf("],\n");
	print_rules(rules);
	printf("     \"stats\": [");
	for (k = 0; k < ops->stat_count; k++)
		printf("%s\n      {\"name\": \"%s\", \"unit\": \"%s\"}", k ? "," : "", ops->stats[k].name,
		       ops->stats[k].unit);
	printf("]}");
}

static void print_scheme(const struct cc_scheme *scheme)
{
	const char *text = scheme->preset;

	printf("    {\"name\": \"%s\", \"core\": \"%s\", \"params\": {", scheme->name, scheme->core);
	while (*text) {
		size_t length = strcspn(text, ","), name = strcspn(text, "=");

		printf("\"%.*s\": %.*s%s", (int)name, text, (int)(length - name - 1), text + name + 1,
		       text[length] ? ", " : "");
		text += length + (text[length] == ',');
	}
	printf("}}");
}

int main(void)
{
	u32 i, count;
	const struct cc_scheme *schemes = cc_schemes(&count);

	printf("{\n  \"cores\": [\n");
	for (i = 0; i < sizeof(cores) / sizeof(cores[0]); i++) {
		print_core(cc_find(cores[i].name), cores[i].wants, cores[i].rules);
		printf("%s\n", i + 1 < sizeof(cores) / sizeof(cores[0]) ? "," : "");
	}
	printf("  ],\n  \"schemes\": [\n");
	for (i = 0; i < count; i++) {
		print_scheme(&schemes[i]);
		printf("%s\n", i + 1 < count ? "," : "");
	}
	printf("  ]\n}\n");
	return 0;
}
