"use strict";
// Tables that sort and copy, tips of marks, and the theme. Without the script all numbers are there.
(() => {
  const cells = (row) => [...row.cells];
  const text = (cell) => cell.textContent.trim();

  function compare(a, b, column) {
    const [x, y] = [a, b].map((row) => row.cells[column]);
    const [p, q] = [x, y].map((cell) => cell.dataset.value);
    if (p !== undefined && q !== undefined) return Number(p) - Number(q);
    if (p !== undefined || q !== undefined) return p !== undefined ? -1 : 1;
    return text(x).localeCompare(text(y), "en", { numeric: true });
  }

  // Where there is no room for the columns, each row becomes a card with their names.
  function labelled(table, names) {
    if (names.length < 3) return;
    for (const row of table.tBodies[0].rows) cells(row).forEach((cell, i) => { cell.dataset.label = names[i]; });
    table.closest(".table")?.classList.add("cards");
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = cells(table.tHead.rows[0]);
    labelled(table, heads.map((head) => head.textContent.trim() || "name"));
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent.trim() || "name";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const falls = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falls ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => compare(a, b, column));
        body.append(...(falls ? rows.reverse() : rows));
      });
    });
  }

  const WRITERS = {
    markdown(head, rows) {
      const line = (row) => `| ${row.map((x) => x.replace(/\|/g, "\\|").replace(/\n/g, " ")).join(" | ")} |`;
      return [line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n");
    },
    csv(head, rows) {
      const quote = (x) => (/[",\n]/.test(x) ? `"${x.replace(/"/g, '""')}"` : x);
      return [head, ...rows].map((row) => row.map(quote).join(",")).join("\n");
    },
    latex(head, rows) {
      const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
      const plain = (x) => x.replace(/[\\~^]|[&%$#_{}]/g, (c) => special[c] || `\\${c}`).replace(/µ/g, "$\\mu$").replace(/\n/g, " ");
      const line = (row) => `${row.map(plain).join(" & ")} \\\\`;
      return [`\\begin{tabular}{${"l".repeat(head.length)}}`, "\\hline", line(head), "\\hline", ...rows.map(line), "\\hline", "\\end{tabular}"].join("\n");
    },
  };

  async function copy(button) {
    if (button.dataset.copy === "text") return put(button, button.previousElementSibling.textContent);
    const table = button.closest(".table").querySelector("table");
    const numbers = button.dataset.copy === "csv";
    const shown = (cell) => (numbers && cell.dataset.value !== undefined ? cell.dataset.value : text(cell));
    const head = cells(table.tHead.rows[0]).map((cell) => cell.textContent.trim());
    const rows = [...table.tBodies[0].rows].map((row) => cells(row).map(shown));
    return put(button, WRITERS[button.dataset.copy](head, rows));
  }

  async function put(button, written) {
    const name = button.textContent;
    try {
      await navigator.clipboard.writeText(written);
    } catch {
      const area = document.createElement("textarea");
      area.value = written;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = name; }, 1200);
  }

  const tip = document.getElementById("tip");
  function show(event) {
    const told = event.target.dataset ? event.target.dataset.tip : undefined;
    tip.hidden = told === undefined;
    if (told === undefined) return;
    tip.textContent = told;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 14}px`;
  }

  function themed() {
    const button = document.getElementById("theme");
    const root = document.documentElement;
    const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
    name();
  }

  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll(".copy").forEach((each) => { each.hidden = false; });
  document.addEventListener("click", (event) => { if (event.target.dataset && event.target.dataset.copy) copy(event.target); });
  document.addEventListener("mousemove", show);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  themed();
})();
