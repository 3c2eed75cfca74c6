/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A loader of kmod/bpf's objects for tests, as small as its contract allows: load OBJECT NAME [FLAGS [INDEX=VALUE ...]]. Prints "attached"
 * and then nothing until it is killed. At its end it prints the number of rows, and for each program its name, run time in ns and number of
 * runs, if kernel.bpf_stats_enabled was set.
 * In the environment (kmod/bpf/README.md): RECORD=0 for no rows, ROW_GAP_US=N for rows of rounds at least N us after the previous row.
 */
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned long long rows;
static FILE *to; /* every row as text, if the environment has ROWS=FILE */
static volatile sig_atomic_t stop;

static int on_row(void *context, void *row, size_t size)
{
	const unsigned *words = row;
	size_t i;

	(void)context;
	rows++;
	if (!to)
		return 0;
	for (i = 6; i < size / sizeof(*words); i++)
		fprintf(to, "%u%c", words[i], i + 1 < size / sizeof(*words) ? ' ' : '\n');
	return 0;
}

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static void print_programs(struct bpf_object *object)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object) {
		struct bpf_prog_info info = {};
		unsigned size = sizeof(info);
		int fd = bpf_program__fd(program);

		/* A program whose member the kernel does not have is not loaded. */
		if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &size))
			printf("program %s %llu %llu\n", bpf_program__name(program),
			       (unsigned long long)info.run_time_ns, (unsigned long long)info.run_cnt);
	}
}

/* Returns whether the kernel's struct tcp_congestion_ops has this member. */
static int kernel_has(struct btf *btf, const char *member)
{
	int id = btf__find_by_name_kind(btf, "tcp_congestion_ops", BTF_KIND_STRUCT), i;
	const struct btf_type *type;

	if (id < 0)
		return 0;
	type = btf__type_by_id(btf, (unsigned)id);
	for (i = 0; i < btf_vlen(type); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off), member))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct bpf_object *object = argc > 2 ? bpf_object__open_file(argv[1], NULL) : NULL;
	struct btf *btf = btf__load_vmlinux_btf();
	struct bpf_map *ops, *config;
	struct ring_buffer *ring;
	struct bpf_link *link;
	unsigned index, value, *words;
	char *bytes;
	size_t size;
	int i;

	if (!object || !btf)
		return 2;
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	ops = bpf_object__find_map_by_name(object, "ccb");
	config = bpf_object__find_map_by_name(object, ".rodata.ccb");
	bytes = (char *)bpf_map__initial_value(ops, &size);
	words = (unsigned *)bpf_map__initial_value(config, &size);
	snprintf(bytes, 16, "%s", argv[2]);
	if (argc > 3)
		*(unsigned *)(bytes + 16) = (unsigned)strtoul(argv[3], NULL, 0);
	if (!kernel_has(btf, "cwnd_event_tx_start"))
		memset(bytes + 24, 0, 8);
	if (getenv("RECORD"))
		words[2] = (unsigned)strtoul(getenv("RECORD"), NULL, 0);
	if (getenv("ROW_GAP_US"))
		words[3] = (unsigned)strtoul(getenv("ROW_GAP_US"), NULL, 0);
	for (i = 4; i < argc; i++)
		if (sscanf(argv[i], "%u=%u", &index, &value) == 2 && index < words[4])
			words[5 + index] = value;
	if (btf__find_by_name_kind(btf, "bpf_struct_ops_link", BTF_KIND_STRUCT) < 0)
		bpf_map__set_map_flags(ops, bpf_map__map_flags(ops) & ~0x2000u); /* BPF_F_LINK */
	if (bpf_object__load(object))
		return 1;
	link = bpf_map__attach_struct_ops(ops);
	if (!link) {
		perror("load: attach");
		return 1;
	}
	to = getenv("ROWS") ? fopen(getenv("ROWS"), "w") : NULL;
	ring = ring_buffer__new(bpf_map__fd(bpf_object__find_map_by_name(object, "ccb_rows")), on_row, NULL, NULL);
	puts("attached");
	fflush(stdout);
	while (!stop) {
		ring_buffer__consume(ring);
		usleep(10000);
	}
	ring_buffer__consume(ring);
	printf("rows %llu\n", rows);
	print_programs(object);
	bpf_link__destroy(link);
	if (to)
		fclose(to);
	return 0;
}
