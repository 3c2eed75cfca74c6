"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id)?.textContent ?? "null");
  const run = read("run");
  const { make, plural, digits, definitionOf, drawPanel, saveButtons, addSaveButtons, fitCharts, startTheme, table, MAX_ROWS } = ccbench;
  const levelsAt = new Map(run.points.map((point) => [point.id, point.levels]));
  const levels = (point) => levelsAt.get(point) ?? [];
  const pointLabel = (point) => run.factors.map((factor, nth) => `${factor} ${levels(point)[nth]}, `).join("");
  /** Returns a text that begins with the name of a metric, with a link from this name to its definition. */
  const withDefinition = (text, scope) => {
    const [metric] = /^\w*/.exec(text);
    const id = definitionOf(metric, scope);
    return id ? [make("a", metric, { href: `#${id}` }), text.slice(metric.length)] : [text];
  };
  const pointName = (point) => (levelsAt.has(point) && run.factors.length ? pointLabel(point).slice(0, -2) : `point ${point}`);
  const trialName = (end) => `${pointLabel(end.point_id)}trial ${end.trial}`;

  // Verdicts.
  const counts = {};
  for (const end of run.trials) counts[end.status] = (counts[end.status] ?? 0) + 1;
  byId("name").textContent = run.name;
  byId("what").textContent = `${run.directory} · ${plural(run.points.length, "point")} · ` +
    `${run.trials.length} of ${plural(run.planned, "trial")} · ${run.status}`;
  for (const status of ["ok", "degraded", "failed", "aborted"]) {
    if (!counts[status]) continue;
    byId("tally").append(make("span", `${counts[status]} ${status}`, { className: status }), " ");
  }
  // List each reason once with all its trials. With many points, list each kind of reason with its first message.
  const byReason = new Map();
  for (const end of run.trials) {
    for (const reason of end.reasons) {
      const key = [end.status, reason.code, run.many_points ? "" : reason.message].join("\n");
      const known = byReason.get(key) ?? { reason, ends: [] };
      known.ends.push(end);
      byReason.set(key, known);
    }
  }
  const reasonRows = [...byReason.values()].map(({ reason, ends }) => ({ reason, ends, end: ends[0] }));
  /** Formats 1, 2, 3 and 5 as "1-3, 5". */
  const ranges = (numbers) => {
    const found = [];
    for (const number of [...numbers].sort((a, b) => a - b)) {
      const last = found.at(-1);
      if (last?.[1] === number - 1) last[1] = number;
      else found.push([number, number]);
    }
    return found.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(", ");
  };
  const trialNames = (ends) => {
    if (ends.length === 1) return trialName(ends[0]);
    const points = new Set(ends.map((end) => end.point_id));
    if (points.size > 1) return `${ends.length} trials of ${points.size} points`;
    return `${pointLabel(ends[0].point_id)}trials ${ranges(ends.map((end) => end.trial))}`;
  };
  const reasons = make("table");
  const open = ({ end, ends }) => {
    const button = make("button", trialNames(ends), { type: "button", title: ends.map(trialName).join("\n") });
    button.addEventListener("click", () => {
      show(run.trials.indexOf(end));
      byId("trial").scrollIntoView();
      byId("which").focus();
    });
    return button;
  };
  byId("reasons").className = "wide";
  byId("reasons").append(reasons);
  table(reasons, "Why trials are degraded or failed", [
    { title: "trial", value: ({ ends }) => trialNames(ends), show: open, className: "trial" },
    { title: "verdict", value: ({ end }) => end.status, show: ({ end }) => make("span", end.status, { className: end.status }) },
    { title: "reason", value: ({ reason }) => reason.code },
    { title: "details", value: ({ reason, ends }) => (run.many_points && ends.length > 1 ? "for example: " : "") + reason.message, className: "reason" },
  ], reasonRows);
  for (const note of [...run.fallbacks, ...run.notes]) byId("notes").append(make("li", note));

  // The overview of the matrix.
  const statuses = ["ok", "degraded", "failed", "aborted"];
  if (run.overview) {
    for (const element of document.querySelectorAll("#overview, nav a[href='#overview']")) element.hidden = false;
    const perPoint = new Map(run.points.map(({ id }) => [id, { point: id, ends: [] }]));
    for (const end of run.trials) perPoint.get(end.point_id)?.ends.push(end);
    const count = ({ ends }, status) => ends.filter((end) => end.status === status).length;
    // A point without trials ranks worst, followed by points with the worst trials.
    const rank = ({ ends }) => (ends.length ? Math.max(...ends.map((end) => statuses.indexOf(end.status))) : statuses.length);
    const ranked = [...perPoint.values()].sort((a, b) => rank(b) - rank(a) || a.point - b.point);
    const clean = ranked.filter((row) => rank(row) === 0).length;
    table(byId("points"), `Points by verdict: ${clean} of ${plural(ranked.length, "point")} without a degraded or failed trial`, [
      ...run.factors.map((factor, nth) => ({ title: factor, value: (row) => levels(row.point)[nth] })),
      { title: "verdict", value: rank, show: (row) => {
        const status = statuses[rank(row)];
        if (!status) return make("span", "no trial", { className: "failed" });
        const link = make("a", status, { href: `#point-${row.point}`, className: status });
        link.setAttribute("aria-label", `${status}: trials of ${pointName(row.point)}`);
        return link;
      } },
      ...statuses.map((status) => ({ title: status, value: (row) => count(row, status), number: true })),
      { title: "reasons", value: ({ ends }) => [...new Set(ends.flatMap((end) => end.reasons.map((reason) => reason.code)))].join(", ") },
    ], ranked);
  }

  // Claims.
  const VERDICT_CLASS = { holds: "ok", does_not_hold: "failed", not_measured: "degraded" };
  /** Returns a text with notes in smaller print below it. */
  const withNotes = (text, ...notes) => {
    const all = make("div");
    all.append(...withDefinition(text));
    for (const note of notes.filter(Boolean)) {
      const line = make("div", undefined, { className: "note" });
      line.append(...withDefinition(note));
      all.append(line);
    }
    return all;
  };
  if (run.claims.length) {
    for (const element of document.querySelectorAll("#claimed, nav a[href='#claimed']")) element.hidden = false;
    table(byId("claims"), "Claims", [
      { title: "verdict", value: (claim) => claim.verdict,
        show: (claim) => make("span", claim.verdict.replaceAll("_", " "), { className: VERDICT_CLASS[claim.verdict] ?? "" }) },
      { title: "claim", value: (claim) => claim.claim, className: "claim-text",
        show: (claim) => withNotes(claim.claim, [claim.number, claim.levels].filter(Boolean).join(", "), claim.reason.join("; ")) },
      { title: "published", value: (claim) => claim.published, className: "wrapped",
        show: (claim) => withNotes(claim.published ?? "-", claim.source) },
      { title: "expected", value: (claim) => claim.expected_text },
      { title: "measured", value: (claim) => claim.measured, show: (claim) => claim.measured_text || "-", number: true },
      { title: "trials", value: (claim) => claim.n_trials, number: true },
    ], run.claims);
  }

  // Rules that end the repetition, and comparisons.
  const READABLE = { us: [1e3, "ms"], "bit/s": [1e6, "Mbit/s"], bytes: [1e3, "kB"], 1: [1, ""] };
  const estimate = (rule) => {
    if (rule.estimate === null) return "-";
    const [scale, unit] = READABLE[rule.unit] ?? [1, rule.unit ?? ""];
    const shown = make("span", digits(rule.estimate / scale));
    if (rule.ci_low !== null) {
      const ends = [rule.ci_low, rule.ci_high].map((end) => digits(end / scale, rule.estimate / scale));
      shown.append(make("span", ` (${ends.join(" to ")})`, { className: "interval" }));
    }
    shown.append(` ${unit}`);
    return shown;
  };
  if (run.decisions.length) {
    for (const element of document.querySelectorAll("#decided, nav a[href='#decided']")) element.hidden = false;
    table(byId("decisions"), "Rules and comparisons", [
      { title: "result", value: (rule) => rule.outcome,
        show: (rule) => make("span", rule.outcome, { className: rule.outcome === "undecided" ? "degraded" : "ok" }) },
      { title: "rule", value: (rule) => rule.number, className: "claim-text", show: (rule) => withNotes(rule.number, rule.levels) },
      { title: "estimate", value: (rule) => rule.estimate, show: estimate, number: true },
      { title: "trials", value: (rule) => rule.trials, number: true },
    ], run.decisions);
  }

  // Summary.
  const place = (point, phase, scope, subject, metric, stat) => [point, phase, scope, subject, metric, stat].join("\n");
  const rowAt = new Map(run.rows.map((r) => [place(r.point, r.phase, r.scope, r.subject, r.metric, r.stat), r]));
  const withInterval = (row, unit) => {
    if (!row) return null;
    const shown = make("span", digits(row.value / unit));
    if (row.low !== null) {
      shown.append(make("span", ` ± ${digits((row.high - row.low) / 2 / unit, row.value / unit)}`, { className: "interval" }));
      shown.title = `${digits(row.low / unit)} to ${digits(row.high / unit)}`;
    }
    return shown;
  };
  const factors = run.factors.map((factor, nth) => ({ title: factor, value: (row) => levels(row.point)[nth] }));
  const phaseColumn = { title: "phase", value: (row) => run.phases.indexOf(row.phase), show: (row) => row.phase };
  /** Returns the number of flows of a group, which is the ratio of two rows; 0 for rows of other subjects. */
  const flowsOf = ({ point, phase, scope, subject }) => {
    const [all, each] = ["throughput_sum", "throughput_per_flow_mean"].map((metric) =>
      rowAt.get(place(point, phase, scope, subject, metric, "mean"))?.value ?? 0);
    return each > 0 ? Math.round(all / each) : 0;
  };
  const summaryTable = (element, caption, scope, main, what, wanted, { lost = [], further = [] } = {}) => {
    const measured = run.rows.filter((r) => r.scope === scope && r.metric === main[0] && r.stat === main[1]);
    const rows = lost.length ? [...measured, ...lost].sort((a, b) => a.point - b.point) : measured;
    const has = ([, metric, stat]) => rows.some((row) => rowAt.has(place(row.point, row.phase, scope, row.subject, metric, stat)));
    const columns = wanted.filter(has).map(([title, metric, stat, unit, best]) => {
      const cell = (row) => rowAt.get(place(row.point, row.phase, scope, row.subject, metric, stat));
      const value = (row) => cell(row)?.value ?? null;
      // Do not compare rows of different points, whose conditions differ, or groups with different numbers of flows.
      const conditions = (row) => `${row.point} ${row.phase} ${flowsOf(row)}`;
      const compared = new Map(rows.map((row) => [conditions(row), new Set()]));
      rows.filter((row) => value(row) !== null).forEach((row) => compared.get(conditions(row)).add(value(row)));
      const isBest = (row) => {
        const values = compared.get(conditions(row));
        return best && values.size > 1 && value(row) === Math[best](...values);
      };
      const showCell = (row) => {
        const shown = withInterval(cell(row), unit);
        if (shown && isBest(row)) {
          shown.classList.add("best");
          shown.append(make("span", " (best)", { className: "hidden" }));
        }
        return shown;
      };
      return { title, value, show: showCell, number: true, definition: definitionOf(metric, scope) };
    });
    const trials = { title: "trials", value: (row) => row.trials, number: true };
    table(element, caption, [...factors, phaseColumn, { title: what, value: (row) => row.subject }, ...further, ...columns, trials], rows);
  };
  const statusesAt = new Map(run.lost.map(([point]) => [point, new Set()]));
  for (const end of run.trials) statusesAt.get(end.point_id)?.add(end.status);
  const lostHow = (point) => {
    const statuses = statusesAt.get(point);
    if (!statuses.has("aborted")) return "failed";
    return statuses.has("failed") ? "failed or interrupted" : "interrupted";
  };
  const lost = run.lost.map(([point, trials]) =>
    ({ point, phase: "-", subject: `all ${plural(trials, "trial")} ${lostHow(point)}`, trials: 0 }));
  const ccAt = new Map(run.ccs.map(([point, group, cc]) => [`${point} ${group}`, cc]));
  const cc = { title: "cc", value: (row) => ccAt.get(`${row.point} ${row.subject}`) ?? null };
  summaryTable(byId("groups"), "Flow groups", "group", ["throughput_sum", "mean"], "group", [
    ["sum Mbit/s", "throughput_sum", "mean", 1e6, "max"],
    ["per flow Mbit/s", "throughput_per_flow_mean", "mean", 1e6, "max"],
    ["srtt ms", "srtt", "mean", 1e3, "min"],
    ["srtt p95 ms", "srtt", "p95", 1e3, "min"],
    ["one-way delay p50 ms", "one_way_delay", "p50", 1e3, "min"],
    ["one-way delay p95 ms", "one_way_delay", "p95", 1e3, "min"],
    ["one-way delay p99 ms", "one_way_delay", "p99", 1e3, "min"],
    ["retransmits", "retransmissions", "sum", 1, "min"],
    ["Jain's index", "jain_fairness_of_mean", "mean", 1, "max"],
  ], { lost, further: run.ccs.length && !run.factors.includes("cc") ? [cc] : [] });
  summaryTable(byId("links"), "Links", "link", ["utilisation", "mean"], "link", [
    ["utilisation %", "utilisation", "mean", 0.01],
    ["queue ms", "queue_delay", "mean", 1e3],
    ["queue p95 ms", "queue_delay", "p95", 1e3],
    ["drops", "drops", "sum", 1],
  ]);
  summaryTable(byId("probes"), "Probes", "probe", ["loss_share", "mean"], "probe", [
    ["rtt ms", "rtt", "mean", 1e3, "min"],
    ["median ms", "rtt", "median", 1e3, "min"],
    ["p95 ms", "rtt", "p95", 1e3, "min"],
    ["fetch ms", "fetch_time", "mean", 1e3, "min"],
    ["fetch KM median ms", "fetch_time", "km_median", 1e3, "min"],
    ["fetch p95 ms", "fetch_time", "p95", 1e3, "min"],
    ["unfinished", "unfinished_fetches", "sum", 1, "min"],
    ["RPM", "rpm", "mean", 1, "max"],
    ["foreign RPM", "foreign_responsiveness", "mean", 1, "max"],
    ["lost %", "loss_share", "mean", 0.01, "min"],
  ]);

  // Trial by trial.
  const MAX_OVERLAID = 20;
  let [current, charts, overlaid] = [0, [], []];
  const curvesId = (end) => `curves-${end.point_id}-${end.trial}`;
  /** Returns names of trials that are as short as their differences permit. */
  const shortNames = (ends) => {
    const level = (end, nth) => levels(end.point_id)[nth];
    const differing = run.factors.map((_, nth) => nth).filter((nth) => new Set(ends.map((end) => level(end, nth))).size > 1);
    return ends.map((end) => [...differing.map((nth) => `${run.factors[nth]} ${level(end, nth)}`), `trial ${end.trial}`].join(", "));
  };
  /** Returns the panels of all trials as one set: each trial has a colour, and its curves have dashes. */
  const merged = (ends, all) => {
    const names = shortNames(ends);
    const panels = new Map();
    all.forEach((ofTrial, place) => {
      for (const { title, unit, samples, curves } of ofTrial) {
        const known = panels.get(`${title}\n${unit}`) ?? { title, unit, samples: 0, curves: [] };
        known.samples += samples;
        known.curves.push(...curves.map((curve, nth) => ({ ...curve, name: `${names[place]}: ${curve.name}`, look: [place, nth] })));
        panels.set(`${title}\n${unit}`, known);
      }
    });
    return [...panels.values()];
  };
  const withoutCurves = (end) => (byId(curvesId(end)) ? `${trialName(end)} has no samples.`
    : `This report has no curves of ${trialName(end)}; draw them with ` +
      `ccbench plot RUN --kind series --where point_id=${end.point_id} --where trial=${end.trial}`);
  const show = (nth) => {
    current = nth;
    overlaid = overlaid.filter((other) => other !== nth);
    const end = run.trials[nth];
    charts.forEach((chart) => chart.destroy());
    charts = [];
    const place = byId("panels");
    place.replaceChildren();
    listOverlaid();
    if (!end) return;
    byId("which").value = String(nth);
    byId("previous").disabled = nth === 0;
    byId("next").disabled = nth === run.trials.length - 1;
    byId("verdict").replaceChildren(make("span", end.status, { className: end.status }),
      end.reasons.length ? `: ${end.reasons.map((reason) => `${reason.code}: ${reason.message}`).join("; ")}` : "");
    const ends = [end, ...overlaid.map((other) => run.trials[other])];
    const all = ends.map((one) => read(curvesId(one)) ?? []);
    place.append(...ends.filter((_, nth) => !all[nth].length).map((one) => make("p", withoutCurves(one), { className: "note" })));
    const panels = ends.length > 1 ? merged(ends, all) : all[0];
    // All panels share one time range that covers the trials and all samples.
    const times = panels.flatMap((panel) => panel.curves.flatMap((curve) => [curve.t_s[0] ?? 0, curve.t_s.at(-1) ?? 0]));
    const whole = [Math.min(0, ...times), Math.max(...ends.flatMap((one) => one.phases.map((phase) => phase.end_us / 1e6)), 0, ...times)];
    const stem = `${run.directory}-${ends.length > 1 ? "overlay" : `point=${end.point_id}-trial=${end.trial}`}`;
    const titles = panels.map((panel) => panel.title);
    charts = panels.map((panel) => {
      const chart = drawPanel(panel, end.phases, whole, place, titles);
      addSaveButtons(chart, panel, end.phases, stem, place);
      return chart;
    });
  };
  const listOverlaid = () => {
    const line = (nth) => {
      const end = run.trials[nth];
      const item = make("li", `${trialName(end)} (${end.status}) `);
      const button = make("button", "Remove", { type: "button" });
      button.setAttribute("aria-label", `Remove ${trialName(end)}`);
      button.addEventListener("click", () => {
        overlay(overlaid.filter((other) => other !== nth));
        byId("other").focus();
      });
      item.append(button);
      return item;
    };
    byId("overlaid").replaceChildren(...overlaid.map(line));
    byId("alone").hidden = !overlaid.length;
    byId("overlay").textContent = overlaid.length ? `${plural(overlaid.length, "trial")} more` : "";
  };
  /** Draws the current trial with these others, up to the number at which a diagram stays readable. */
  const overlay = (others) => {
    const wanted = [...new Set(others)].filter((other) => other !== current);
    overlaid = wanted.slice(0, MAX_OVERLAID);
    show(current);
    if (wanted.length > MAX_OVERLAID) byId("overlay").textContent = `the first ${MAX_OVERLAID} of ${wanted.length} trials`;
  };
  const trialsOf = (point) => run.trials.flatMap((end, nth) => (end.point_id === point ? [nth] : []));
  for (const id of ["which", "other"]) {
    byId(id).append(...run.trials.map((end, nth) => make("option", `${trialName(end)} (${end.status})`, { value: String(nth) })));
  }
  byId("which").addEventListener("change", (event) => show(Number(event.target.value)));
  byId("previous").addEventListener("click", () => show(current - 1));
  byId("next").addEventListener("click", () => show(current + 1));
  byId("all").addEventListener("click", () => show(current));
  byId("add").addEventListener("click", () => overlay([...overlaid, Number(byId("other").value)]));
  byId("add-point").addEventListener("click", () => overlay([...overlaid, ...trialsOf(run.trials[Number(byId("other").value)]?.point_id)]));
  byId("alone").addEventListener("click", () => {
    overlay([]);
    byId("other").focus();
  });
  fitCharts(byId("panels"), () => charts);
  /** Opens all trials of a point, beginning with those that have curves. */
  const openPoint = (point) => {
    const [first, ...others] = trialsOf(point).sort((a, b) => Boolean(byId(curvesId(run.trials[b]))) - Boolean(byId(curvesId(run.trials[a]))));
    current = first ?? current;
    overlay(others);
    if (first === undefined) byId("overlay").textContent = `There is no trial of ${pointName(point)}.`;
    byId("trial").scrollIntoView();
    byId("which").focus();
  };
  const pointOf = (address) => /^#point-(\d+)$/.exec(address ?? "")?.[1];
  const followAddress = () => {
    const point = pointOf(location.hash);
    if (point !== undefined) openPoint(Number(point));
  };
  addEventListener("hashchange", followAddress);
  document.addEventListener("click", (event) => {
    // If the page already has this address, there is no `hashchange`.
    const link = event.target.closest("a[href^='#point-']");
    if (link?.getAttribute("href") === location.hash) followAddress();
  });

  // Heatmaps: their cells are links. The Tab key reaches one cell of each; arrow keys lead to its neighbours.
  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const middle = (link) => {
    const box = link.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  const neighbour = (link, links, [right, down]) => {
    const [x, y] = middle(link);
    const distance = (other) => {
      const [dx, dy] = [middle(other)[0] - x, middle(other)[1] - y];
      const [along, beside] = [dx * right + dy * down, Math.abs(dx * down) + Math.abs(dy * right)];
      return along < 1 ? Infinity : along + 4 * beside;
    };
    const nearest = links.reduce((best, other) => (distance(other) < distance(best) ? other : best), link);
    return distance(nearest) < Infinity ? nearest : link;
  };
  for (const figure of document.querySelectorAll("#overview figure")) {
    const svg = figure.querySelector("svg");
    const title = svg.querySelector("title").textContent;
    const links = [...svg.querySelectorAll("a")];
    svg.setAttribute("aria-label", `${title}: links to the trials of each point; the arrow keys move between them`);
    links.forEach((link, nth) => link.setAttribute("tabindex", nth ? "-1" : "0"));
    svg.addEventListener("keydown", (event) => {
      const link = event.target.closest("a");
      if (!link || !DIRECTIONS[event.key]) return;
      event.preventDefault();
      const next = neighbour(link, links, DIRECTIONS[event.key]);
      link.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
    const { stem, csv } = JSON.parse(figure.querySelector("script").textContent);
    const plain = () => {
      const copy = svg.cloneNode(true);
      for (const link of copy.querySelectorAll("a")) link.replaceWith(...link.childNodes);
      copy.removeAttribute("aria-label");
      copy.setAttribute("role", "img");
      return new XMLSerializer().serializeToString(copy);
    };
    figure.append(saveButtons(title, `${run.directory}-${stem}`, plain, () => csv));
  }

  // All metrics.
  const options = (id, values) => byId(id).append(...["all", ...values].map((value) => make("option", value, { value })));
  options("phase", [...new Set(run.rows.map((row) => row.phase))]);
  options("scope", [...new Set(run.rows.map((row) => row.scope))]);
  const metricLink = (row) => {
    const shown = make("span");
    shown.append(...withDefinition(row.metric, row.scope));
    return shown;
  };
  const listMetrics = () => {
    const [phase, scope] = ["phase", "scope"].map((id) => byId(id).value);
    const text = byId("search").value.toLowerCase();
    const rows = run.rows.filter((row) => (phase === "all" || row.phase === phase) && (scope === "all" || row.scope === scope) &&
      `${row.subject} ${row.metric} ${row.stat}`.toLowerCase().includes(text));
    byId("found").textContent = rows.length > MAX_ROWS ? `the first ${MAX_ROWS} of ${rows.length} rows` : plural(rows.length, "row");
    const old = byId("everything");
    const fresh = make("table", undefined, { id: "everything" });
    old.replaceWith(fresh);
    const columns = [...factors, phaseColumn, { title: "of", value: (r) => `${r.scope} ${r.subject}` },
      { title: "metric", value: (r) => r.metric, show: metricLink }, { title: "stat", value: (r) => r.stat },
      { title: "value", value: (r) => r.value, show: (r) => withInterval(r, 1), number: true },
      { title: "unit", value: (r) => r.unit }, { title: "trials", value: (r) => r.trials, number: true }];
    if (rows.length) table(fresh, "Means over trials", columns, rows.slice(0, MAX_ROWS));
  };
  if (run.main_metrics) byId("metrics").append(make("p", "This report has the main metrics only; summary_point.csv in the results directory has all.", { className: "note" }));
  for (const id of ["phase", "scope", "search"]) byId(id).addEventListener("input", listMetrics);

  // Load the data.
  byId("run-name").textContent = run.directory;
  for (const { name, code } of run.snippets) {
    // Make the code focusable, so that the keyboard can scroll it if it is wider than the page.
    const listing = make("pre", code, { tabIndex: 0, role: "group" });
    listing.setAttribute("aria-label", `Code for ${name}`);
    byId("snippets").append(make("h3", name), listing);
  }

  // Provenance.
  const session = run.run.sessions?.[0] ?? {};
  const facts = { directory: run.directory, "plan sha256": run.run.plan_sha256, seed: run.run.seed, started: session.started_utc,
    ccbench: session.ccbench_version, command: session.command_line?.join(" "), overrides: session.sets?.join(" ") };
  for (const [name, value] of Object.entries(facts)) {
    if (value !== undefined && value !== "") byId("facts").append(make("dt", name), make("dd", String(value)));
  }
  const text = (value) => (value === undefined || value === null ? "" : Array.isArray(value) ? value.join(" ") : String(value));
  const nodes = Object.entries(session.nodes ?? {});
  const NODE = ["hostname", "kernel", "cpu_model", "cpus", "clocksource", "privileges", "iperf3_version", "congestion_controls"];
  const known = NODE.filter((key) => nodes.some(([, info]) => info[key] !== undefined));
  table(byId("nodes"), "Nodes", [{ title: "node", value: ([name]) => name },
    ...known.map((key) => ({ title: key.replaceAll("_", " "), value: ([, info]) => text(info[key]) }))], nodes);
  byId("plan").textContent = run.plan;
  byId("record").textContent = JSON.stringify(run.run, null, 2);

  listMetrics();
  startTheme(() => show(current));
  followAddress();
  document.documentElement.dataset.ready = "yes";
})();
