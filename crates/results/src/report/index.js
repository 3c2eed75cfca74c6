"use strict";
(() => {
  const { make, plural, startTheme, table, MAX_ROWS } = ccbench;
  const byId = (id) => document.getElementById(id);
  const { folder, runs, unreadable, others } = JSON.parse(byId("index").textContent);
  const STATUS_CLASS = { complete: "ok", interrupted: "degraded", killed: "degraded", failed: "failed", running: "" };

  byId("name").textContent = `Runs in ${folder}`;
  const also = others ? ` · ${others} other director${others === 1 ? "y" : "ies"}` : "";
  byId("what").textContent = plural(runs.length, "run") + (unreadable.length ? ` · ${unreadable.length} cannot be read` : "") + also;

  const link = (run) => (run.has_report ? make("a", run.directory, { href: `${encodeURIComponent(run.directory)}/report.html` }) : run.directory);
  /** Returns a number of trials in the colour of their verdict. */
  const count = (status) => ({ title: status, value: (run) => run[status], number: true,
    show: (run) => make("span", String(run[status]), { className: run[status] ? status : "" }) });
  const columns = [
    { title: "plan", value: (run) => run.plan },
    { title: "started (UTC)", value: (run) => run.started_utc, show: (run) => run.started_utc.slice(0, 19).replace("T", " ") },
    { title: "backend", value: (run) => run.backend },
    { title: "status", value: (run) => run.status, show: (run) => make("span", run.status, { className: STATUS_CLASS[run.status] ?? "" }) },
    { title: "points", value: (run) => run.points, number: true },
    { title: "trials", value: (run) => run.trials, show: (run) => `${run.trials} of ${run.planned}`, number: true },
    ...["ok", "degraded", "failed", "aborted"].map(count),
    { title: "report", value: (run) => run.directory, show: link },
  ];
  const list = () => {
    const text = byId("search").value.toLowerCase();
    const found = runs.filter((run) => [run.plan, run.directory, run.backend, run.status, run.started_utc].join(" ").toLowerCase().includes(text));
    byId("found").textContent = found.length > MAX_ROWS ? `the first ${MAX_ROWS} of ${found.length} runs` : plural(found.length, "run");
    const fresh = make("table", undefined, { id: "runs" });
    byId("runs").replaceWith(fresh);
    if (found.length) table(fresh, "Runs, the newest first", columns, found);
  };
  byId("search").addEventListener("input", list);
  list();

  if (unreadable.length) {
    byId("unreadable-section").hidden = false;
    table(byId("unreadable"), "Directories", [
      { title: "directory", value: (one) => one.directory },
      { title: "error", value: (one) => one.error, className: "reason" },
    ], unreadable);
  }
  startTheme(() => {});
  document.documentElement.dataset.ready = "yes";
})();
