"use strict";
/** Tables with sortable columns. */
Object.assign(ccbench, (() => {
  const { make, definitionLink } = ccbench;
  const MAX_ROWS = 500;
  /** Returns text that may wrap after dots and underscores, but not within words. */
  const wrappable = (text) => text.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]);

  /** Fills a table with sortable columns. Columns: {title, value(row), show(row) -> text or node, number, definition}; `definition` is
   *  the id of the title's definition. */
  const table = (element, caption, columns, rows) => {
    if (!rows.length) return element.remove();
    let [by, descending] = [null, false];
    const draw = () => {
      const value = by === null ? null : columns[by].value;
      const order = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b) === descending ? 1 : -1);
      const sorted = (value ? [...rows].sort((a, b) => order(value(a), value(b))) : rows).slice(0, MAX_ROWS);
      const head = make("tr");
      columns.forEach((column, nth) => {
        const cell = make("th", undefined, { scope: "col", className: column.number ? "number" : "" });
        const sign = nth === by ? (descending ? " ▾" : " ▴") : "";
        const button = make("button", undefined, { type: "button" });
        button.append(...wrappable(column.title + sign));
        cell.setAttribute("aria-sort", nth === by ? (descending ? "descending" : "ascending") : "none");
        button.addEventListener("click", () => {
          [by, descending] = [nth, by === nth ? !descending : Boolean(column.number)];
          draw();
          element.querySelectorAll("thead button")[nth].focus();
        });
        cell.append(button);
        if (column.definition) cell.append(definitionLink(column.definition, column.title));
        head.append(cell);
      });
      const body = make("tbody");
      for (const row of sorted) {
        const line = make("tr");
        for (const column of columns) {
          const cell = make("td", undefined, { className: column.number ? "number" : column.className ?? "" });
          const shown = column.show ? column.show(row) : column.value(row);
          cell.append(shown ?? "-");
          line.append(cell);
        }
        body.append(line);
      }
      const top = make("thead");
      top.append(head);
      const shown = rows.length > MAX_ROWS ? `${caption}: the first ${MAX_ROWS} of ${rows.length} rows` : caption;
      element.replaceChildren(make("caption", shown), top, body);
    };
    draw();
  };

  return { table, MAX_ROWS };
})());
