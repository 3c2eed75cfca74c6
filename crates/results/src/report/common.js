"use strict";
/** Shared by the report and the live page: elements, numbers, links to definitions, panels with curves, and the theme. */
const ccbench = (() => {
  // The Okabe-Ito palette for colour-blind readers.
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800"];
  const DASHES = [[], [8, 4], [2, 3]];
  const DENSE_POINTS = 500;
  const FEW_POINTS = 200;
  const CHART_HEIGHT = 220;

  const make = (tag, text, properties = {}) => {
    const element = Object.assign(document.createElement(tag), properties);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  /** Formats a number with a precision suitable for the magnitude of `like`. */
  const digits = (value, like = value) => {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(like);
    return value.toFixed(size >= 1000 || (value === like && Number.isInteger(value)) ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4);
  };

  /** Returns the id of a metric's definition; undefined if the page has none. */
  const definitionOf = (metric, scope) => [`definition-${metric}-${scope}`, `definition-${metric}`].find((id) => document.getElementById(id));
  /** Returns a link to the definition of `what`. The stylesheet shows it as a question mark. */
  const definitionLink = (id, what) => {
    const link = make("a", undefined, { href: `#${id}`, className: "definition" });
    link.setAttribute("aria-label", `Definition of ${what}`);
    return link;
  };
  /** Metric and scope of what a panel shows, by title. */
  const PANEL_METRICS = {
    Throughput: ["throughput", "flow"],
    "Smoothed RTT": ["srtt", "flow"],
    "Congestion window": ["cwnd", "flow"],
    "In flight": ["in_flight", "flow"],
    "Retransmissions so far": ["retransmissions", "flow"],
    "Probe RTT": ["rtt", "probe"],
    Queue: ["backlog", "link"],
  };
  const LONG_NAMES = { full_pipe: "full_bw_reached", hi: "longterm", lo: "shortterm" };
  /**
   * Returns metric and scope of a panel; undefined if no metric defines what it shows. Internal state of a congestion control has the title
   * "CC: VARIABLE". There are metrics of it if the congestion control has states, which are its variable `mode`; `titles` are those of all panels.
   */
  const metricOf = (title, titles) => {
    const [cc, variable] = title.split(": ");
    if (variable === undefined || !titles.includes(`${cc}: mode`)) return PANEL_METRICS[title];
    if (variable === "mode") return ["cc_state_time", "flow"];
    const name = variable.replace(/_(kbps|us|pkts)$/, "");
    return [`bbr_${LONG_NAMES[name] ?? name.replace(/(?<=_)(hi|lo)$/, (short) => LONG_NAMES[short])}`, "flow"];
  };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const bands = (phases) => (chart) => {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    phases.forEach((phase, nth) => {
      const from = chart.valToPos(phase.start_us / 1e6, "x", true);
      const to = chart.valToPos(phase.end_us / 1e6, "x", true);
      if (nth % 2 === 0) {
        ctx.fillStyle = style("--band");
        ctx.fillRect(from, bbox.top, to - from, bbox.height);
      }
      ctx.fillStyle = style("--faint");
      ctx.fillText(phase.name, Math.max(from, bbox.left) + 4 * devicePixelRatio, bbox.top + 12 * devicePixelRatio);
    });
    ctx.restore();
  };
  const lineOf = (points) => ({
    // With many points, lines are one device pixel wide: browsers draw such lines many times faster, so zooming and live updates stay smooth.
    width: points > DENSE_POINTS ? 1 / devicePixelRatio : 1.5,
    spanGaps: true,
    points: { show: points < FEW_POINTS, fill: style("--back") },
    value: (_, value) => digits(value),
  });
  const describeCurves = (panel) => panel.curves.map((curve) => {
    const [low, high] = curve.value.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    return `${curve.name} from ${digits(low)} to ${digits(high)}`;
  }).join("; ");
  /**
   * Draws a panel {title, unit, samples, curves: [{name, t_s, value, look}], about} at the end of `place`. `about` describes the curves.
   * `look` has the numbers of a curve's colour and of its dashes. `whole` is the time range without zoom, `titles` are those of all panels.
   */
  const drawPanel = (panel, phases, whole, place, titles = []) => {
    const figure = make("div");
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `${panel.title} in ${panel.unit}: ${panel.about ?? describeCurves(panel)}`);
    const samples = panel.samples === undefined ? "" : plural(panel.samples, "sample");
    const heading = make("h3", `${panel.title}, ${panel.unit}`, { title: samples });
    const metric = metricOf(panel.title, titles);
    const definition = metric && definitionOf(...metric);
    if (definition) heading.append(definitionLink(definition, panel.title));
    place.append(heading, figure);
    const [ink, line] = [style("--ink"), style("--line")];
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const data = uPlot.join(panel.curves.map((curve) => [curve.t_s, curve.value]));
    const points = panel.curves.reduce((count, curve) => count + curve.t_s.length, 0);
    const series = panel.curves.map((curve, nth) => {
      const [colour, dash] = curve.look ?? [nth, Math.floor(nth / COLOURS.length)];
      return { ...lineOf(points), label: curve.name, stroke: COLOURS[colour % COLOURS.length], dash: DASHES[dash % DASHES.length] };
    });
    const chart = new uPlot({
      width: place.clientWidth,
      height: CHART_HEIGHT,
      scales: { x: { time: false, range: ({ data: [times] }, low, high) => (times.length < 2 || (low === times[0] && high === times.at(-1)) ? whole : [low, high]) },
        y: { range: (_, low, high) => [Math.min(0, (low ?? 0) * 1.05), Math.max(0, (high ?? 1) * 1.12) || (low < 0 ? 0 : 1)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => `${t} s`) }, { ...axis, size: 64 }],
      cursor: { sync: { key: "trial" } },
      series: [{ label: "time", value: (_, t) => (t === null ? "-" : `${t.toFixed(3)} s`) }, ...series],
      hooks: { drawClear: [bands(phases)] },
    }, data, figure);
    // uPlot's legend is a table only for layout. Its entries are buttons that say whether their curve is shown.
    figure.querySelector(".u-legend").setAttribute("role", "presentation");
    const entries = [...figure.querySelectorAll(".u-legend .u-series th")].slice(1);
    const setPressed = () => entries.forEach((entry) => entry.setAttribute("aria-pressed", String(!entry.parentElement.classList.contains("u-off"))));
    for (const entry of entries) {
      Object.assign(entry, { tabIndex: 0, role: "button" });
      entry.addEventListener("click", setPressed);
      entry.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        entry.click();
      });
    }
    setPressed();
    return chart;
  };

  /** Keeps the charts that `charts()` returns as wide as `place`. */
  const fitCharts = (place, charts) => new ResizeObserver(() => {
    const width = place.clientWidth;
    for (const chart of charts()) if (chart.width !== width) chart.setSize({ width, height: CHART_HEIGHT });
  }).observe(place);
  /** Sets the theme: follows the system or the button `#theme`, whichever changed last. Calls `draw` at once and after changes. */
  const startTheme = (draw) => {
    const button = document.getElementById("theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const apply = (isDark) => {
      document.documentElement.dataset.theme = isDark ? "dark" : "light";
      button.textContent = isDark ? "Light" : "Dark";
      draw();
    };
    button.addEventListener("click", () => apply(document.documentElement.dataset.theme !== "dark"));
    dark.addEventListener("change", () => apply(dark.matches));
    apply(dark.matches);
  };

  return { make, plural, digits, definitionOf, definitionLink, drawPanel, fitCharts, startTheme };
})();
