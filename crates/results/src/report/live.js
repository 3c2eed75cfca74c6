"use strict";
(() => {
  const { make, plural, digits, definitionOf, definitionLink, drawPanel, addSaveButtons, fitCharts, startTheme } = ccbench;
  const byId = (id) => document.getElementById(id);
  /** What is plotted over time: subjects of a trial, the quantity, and its readable unit. */
  const QUANTITIES = [
    { title: "Throughput", unit: "Mbit/s", of: "flows", key: "rate_bps", scale: 1e6 },
    { title: "Smoothed RTT", unit: "ms", of: "flows", key: "rtt_us", scale: 1e3 },
    { title: "Congestion window", unit: "packets", of: "flows", key: "cwnd_pkts", scale: 1 },
    { title: "In flight", unit: "packets", of: "flows", key: "in_flight_pkts", scale: 1 },
    { title: "Queue", unit: "kB", of: "links", key: "backlog_bytes", scale: 1e3 },
    { title: "Probe RTT", unit: "ms", of: "probes", key: "rtt_us", scale: 1e3 },
  ];
  const MAX_CURVES = 100;
  const IDLE_S = 2;

  let latest = null;
  let paused = false;
  let updates = 0;
  /** Number of the trial whose curves are kept; 0 if there is none. */
  let number = 0;
  let attempt = 0;
  /** Panels by title: values by name, whether the chart is old, and whether it lacks a curve. */
  let panels = new Map();
  /** The panels whose charts are on the page. While the page is paused, these are the panels of the trial at that time. */
  let drawn = null;
  /** Where each panel is drawn, by title: element, chart, and whether the window shows it. */
  const places = new Map(QUANTITIES.map(({ title }) => [title, { element: make("div"), chart: null, isVisible: false }]));
  let [times, whole] = [[], [0, 1]];

  const setText = (id, text) => {
    const element = byId(id);
    if (element.textContent !== text) element.textContent = text;
  };
  const clock = (seconds) => {
    const [s, m, h] = [seconds % 60, Math.floor(seconds / 60) % 60, Math.floor(seconds / 3600)].map((n) => String(Math.floor(n)).padStart(2, "0"));
    return `${h === "00" ? "" : `${h}:`}${m}:${s}`;
  };
  const scaled = (quantity, scale) => (typeof quantity.now === "number" ? digits(quantity.now / scale) : "-");

  const reset = (trial) => {
    panels = new Map();
    number = trial.number;
    attempt = trial.attempt;
    // The last bin has everything after the planned end.
    const bins = Math.max(1, Math.ceil(trial.length_s / trial.bin_s)) + 1;
    times = Array.from({ length: 2 * bins }, (_, nth) => (nth * trial.bin_s) / 2);
    whole = [0, Math.max(trial.length_s, trial.bin_s)];
  };

  /** Adds the bins that have changed. Cheap: it runs for every update, also while the browser draws fewer frames than updates arrive. */
  const merge = (trial) => {
    for (const { title, of, key, scale } of QUANTITIES) {
      const panel = panels.get(title) ?? { values: new Map(), isOld: false, isNew: false };
      for (const [name, subject] of Object.entries(trial[of])) {
        const bins = subject[key].bins ?? [];
        if (!bins.length) continue;
        if (!panel.values.has(name)) {
          if (panel.values.size >= MAX_CURVES) continue;
          panel.values.set(name, new Array(times.length).fill(null));
          panel.isNew = true;
        }
        const values = panel.values.get(name);
        for (const [bin, min, , max] of bins) [values[2 * bin], values[2 * bin + 1]] = [min / scale, max / scale];
        panel.isOld = true;
      }
      panels.set(title, panel);
    }
  };

  const clear = (place) => {
    place.chart?.destroy();
    place.chart = null;
    place.element.replaceChildren();
  };
  /** Draws the panels that have changed and that the window shows, or all that have changed. The others are drawn when they come into view. */
  const drawPanels = (trial, isAll) => {
    if (drawn !== panels) places.forEach(clear);
    drawn = panels;
    for (const { title, unit, of } of QUANTITIES) {
      const [panel, place] = [panels.get(title), places.get(title)];
      if (!panel?.values.size || (place.chart && !(panel.isOld && (isAll || place.isVisible)))) continue;
      if (!place.chart || panel.isNew) {
        clear(place);
        const curves = [...panel.values].map(([name, value]) => ({ name, t_s: times, value }));
        const all = Object.keys(trial[of]).length;
        const about = all > curves.length ? `the first ${curves.length} of ${all} ${of}` : plural(curves.length, "curve");
        place.chart = drawPanel({ title, unit, curves, about: `${about}; the tables have the numbers` }, trial.phases, whole, place.element);
        addSaveButtons(place.chart, { title, unit }, trial.phases, `trial=${trial.number}`, place.element);
      } else {
        place.chart.setData([times, ...panel.values.values()]);
      }
      [panel.isOld, panel.isNew] = [false, false];
    }
  };

  /**
   * Updates a table whose cells keep their elements, so that focus and selection stay. Columns: {title, value(name, row), number, metric};
   * `metric` has the metric and the scope that define a number.
   */
  const tables = new Map();
  const showTable = (id, caption, columns, rows, rowClass = () => "") => {
    let lines = tables.get(id);
    if (!lines) {
      const head = make("tr");
      for (const { title, number: isNumber, metric } of columns) {
        const cell = make("th", title, { scope: "col", className: isNumber ? "number" : "" });
        const definition = metric && definitionOf(...metric);
        if (definition) cell.append(definitionLink(definition, title));
        head.append(cell);
      }
      const top = make("thead");
      top.append(head);
      byId(id).replaceChildren(make("caption", caption), top, make("tbody"));
      tables.set(id, (lines = new Map()));
    }
    const body = byId(id).tBodies[0];
    const wanted = new Set(rows.map(([name]) => name));
    for (const [name, line] of lines) {
      if (wanted.has(name)) continue;
      line.remove();
      lines.delete(name);
    }
    rows.forEach(([name, row], place) => {
      let line = lines.get(name);
      if (!line) {
        line = make("tr");
        for (const { number: isNumber } of columns) line.append(make("td", "", { className: isNumber ? "number" : "" }));
        lines.set(name, line);
      }
      if (body.rows[place] !== line) body.insertBefore(line, body.rows[place] ?? null);
      if (line.className !== rowClass(row)) line.className = rowClass(row);
      columns.forEach(({ value }, nth) => {
        const text = String(value(name, row));
        if (line.cells[nth].textContent !== text) line.cells[nth].textContent = text;
      });
    });
    byId(id).hidden = !rows.length;
  };
  const setList = (id, texts) => {
    if (byId(id).dataset.texts === JSON.stringify(texts)) return;
    byId(id).dataset.texts = JSON.stringify(texts);
    byId(id).replaceChildren(...texts.map((text) => make("li", text)));
  };
  const setVerdict = (status, hasEnded) => {
    byId("verdict").className = status;
    setText("verdict", status + (hasEnded ? " (final)" : ""));
  };

  const name = { title: "", value: (own) => own };
  const FLOWS = [{ ...name, title: "flow" }, { title: "cc", value: (_, flow) => flow.cc },
    { title: "Mbit/s", value: (_, flow) => scaled(flow.rate_bps, 1e6), number: true, metric: ["throughput", "flow"] },
    { title: "srtt ms", value: (_, flow) => scaled(flow.rtt_us, 1e3), number: true, metric: ["srtt", "flow"] },
    { title: "cwnd packets", value: (_, flow) => scaled(flow.cwnd_pkts, 1), number: true, metric: ["cwnd", "flow"] },
    { title: "in flight packets", value: (_, flow) => scaled(flow.in_flight_pkts, 1), number: true, metric: ["in_flight", "flow"] },
    { title: "retransmissions", value: (_, flow) => flow.retrans_pkts, number: true, metric: ["retransmissions", "flow"] },
    { title: "marks", value: (_, flow) => flow.marks_pkts ?? "-", number: true }];
  const LINKS = [{ ...name, title: "link" },
    { title: "rate Mbit/s", value: (_, link) => (link.rate_bps === null ? "-" : digits(link.rate_bps / 1e6)), number: true },
    { title: "queue kB", value: (_, link) => scaled(link.backlog_bytes, 1e3), number: true, metric: ["backlog", "link"] },
    { title: "drops", value: (_, link) => link.drops_pkts, number: true, metric: ["drops", "link"] },
    { title: "marks", value: (_, link) => link.marks_pkts ?? "-", number: true, metric: ["marks", "link"] }];
  const PROBES = [{ ...name, title: "probe" }, { title: "ms", value: (_, probe) => scaled(probe.rtt_us, 1e3), number: true, metric: ["rtt", "probe"] },
    { title: "sent", value: (_, probe) => probe.sent, number: true },
    { title: "lost", value: (_, probe) => probe.lost, number: true, metric: ["loss_share", "probe"] }];
  const HOSTS = [{ ...name, title: "node" }, { title: "CPU %", value: (_, host) => digits(host.busy_pct), number: true },
    { title: "busiest CPU %", value: (_, host) => digits(host.max_busy_pct), number: true },
    { title: "its peak %", value: (_, host) => digits(host.peak_busy_pct), number: true },
    { title: "steal %", value: (_, host) => digits(host.steal_pct), number: true },
    { title: "agent % of a CPU", value: (_, host) => digits(host.agent_pct), number: true },
    { title: "dropped before a queue", value: (_, host) => host.softnet_dropped, number: true }];
  const TRIALS = [{ title: "number", value: (_, trial) => trial.number, number: true }, { title: "trial", value: (_, trial) => trial.label },
    { title: "state", value: (_, trial) => trial.status ?? `${trial.phase ?? "between phases"}, ${clock(trial.elapsed_s)} of ${clock(trial.length_s)}` }];

  const showRun = (run) => {
    setText("name", run.name || "Run in progress");
    setText("what", `${run.directory} · at most ${plural(run.trials, "trial")}`);
    const left = run.left_s === null ? "" : `about ${clock(run.left_s)} left`;
    setText("next", [left, run.next ? `next trial: ${run.next}` : ""].filter(Boolean).join(" · "));
    const ended = Object.entries(run.ended).map(([status, count]) => `${count} ${status}`);
    setText("tally", ended.length ? `Trials that have ended: ${ended.join(", ")}` : "No trial has ended yet.");
    const rows = [...run.running, ...[...run.last].reverse()].map((trial) => [trial.number, trial]);
    showTable("trials", "Trials that run, and the last ones that have ended", TRIALS, rows);
    const earlier = run.messages_left_out ? [`${plural(run.messages_left_out, "earlier message")}`] : [];
    setList("messages", [...earlier, ...run.messages]);
  };
  const showTrial = (trial, run, isAll) => {
    const phase = trial.has_ended ? "ended" : trial.phase ? `phase ${trial.phase}` : "between phases";
    const then = trial.next_phase ? `, then ${trial.next_phase}` : "";
    setText("now", `Trial ${trial.number} of ${run.trials}: ${trial.label}: ${phase}${then}`);
    byId("elapsed").value = trial.length_s ? Math.min(1, trial.elapsed_s / trial.length_s) : 0;
    setText("time", `${clock(trial.elapsed_s)} of ${clock(trial.length_s)}`);
    setVerdict(trial.status, trial.has_ended);
    setList("reasons", trial.reasons);
    const byName = (of) => Object.entries(trial[of]);
    showTable("flows", "Flows", FLOWS, byName("flows"), (flow) => (flow.idle_s > IDLE_S ? "idle" : ""));
    showTable("links", "Links", LINKS, byName("links"));
    showTable("probes", "Probes", PROBES, byName("probes"));
    showTable("hosts", "Machines of the nodes", HOSTS, byName("hosts"));
    setText("left-out", trial.rows_left_out ? `${plural(trial.rows_left_out, "row")} of further flows are in the results only.` : "");
    setText("outside", trial.rows_outside
      ? `${plural(trial.rows_outside, "row")} from before the trial's start, or of nodes whose clock is not known, are in the results only.` : "");
    drawPanels(trial, isAll);
  };
  /** Shows the newest update: the panels in view, or all panels. */
  const show = (isAll = false) => {
    if (!latest || paused) return;
    showRun(latest.run);
    if (latest.trial) showTrial(latest.trial, latest.run, isAll);
    else if (latest.run.waits_for_nodes) setText("now", "Waiting until every node answers");
    document.documentElement.dataset.updates = String(updates);
  };
  let isScheduled = false;
  /**
   * Shows the newest update in the next frame. Updates that arrive faster than the browser draws share a frame: drawing each of them would
   * let them queue up, so that the page falls behind more and more.
   */
  const schedule = () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      show();
    });
  };

  const source = new EventSource("events");
  source.addEventListener("open", () => {
    // The server sends everything again.
    number = 0;
    setText("connection", "");
  });
  source.addEventListener("message", (event) => {
    latest = JSON.parse(event.data);
    updates += 1;
    // Browsers draw no frames of a tab in the background, but show its title.
    document.title = `${latest.run.name} · ccbench`;
    if (latest.trial) {
      if (latest.trial.number !== number || latest.trial.attempt !== attempt) reset(latest.trial);
      merge(latest.trial);
    }
    schedule();
  });
  source.addEventListener("error", () => setText("connection", "The connection to ccbench is lost; trying again."));
  source.addEventListener("end", () => {
    source.close();
    if (!paused) {
      setText("connection", "The run has ended. This page becomes its report.");
      location.replace("report");
      return;
    }
    const later = `, now or with: ccbench view ${latest?.run.directory ?? "DIR"}`;
    byId("connection").replaceChildren("The run has ended: ", make("a", "open its report", { href: "report" }), later);
  });

  byId("pause").addEventListener("click", () => {
    // All panels then have the same age, wherever the reader scrolls.
    show(true);
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    show();
  });
  byId("panels").append(...[...places.values()].map(({ element }) => element));
  const observer = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      for (const place of places.values()) if (place.element === target) place.isVisible = isIntersecting;
    }
    schedule();
  });
  for (const { element } of places.values()) observer.observe(element);
  fitCharts(byId("panels"), () => [...places.values()].flatMap(({ chart }) => chart ?? []));
  startTheme(() => {
    drawn = null;
    show();
  });
})();
