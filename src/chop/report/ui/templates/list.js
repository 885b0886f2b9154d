"use strict";
// The list refreshes itself and keeps the filter, the sort order and the selection.
const find = document.getElementById("find");
const rows = document.getElementById("rows");
const statusText = document.getElementById("status");
const button = document.getElementById("compare");
const heads = [...document.querySelectorAll("th[data-sort]")];
const ticked = new Set();
let order = null;
let displayed = rows.innerHTML;

function filter() {
  const wanted = find.value.trim().toLowerCase();
  for (const row of rows.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}

function compare(a, b, column) {
  const [x, y] = [a, b].map((row) => row.cells[column]);
  const [p, q] = [x, y].map((cell) => cell.dataset.value);
  if (p !== undefined && q !== undefined) return Number(p) - Number(q);
  return x.textContent.trim().localeCompare(y.textContent.trim(), "en", { numeric: true });
}

function sort() {
  if (order === null) return;
  const { column, falls } = order;
  const known = (row) => row.cells[column] && row.cells[column].textContent.trim() !== "";
  const all = [...rows.rows].filter((row) => row.dataset.run !== undefined);
  const sortable = all.filter(known).sort((a, b) => compare(a, b, column));
  // Runs without a number are last in both directions.
  rows.append(...(falls ? sortable.reverse() : sortable), ...all.filter((row) => !known(row)));
}

for (const head of heads) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = head.textContent;
  head.replaceChildren(made);
  made.addEventListener("click", () => {
    const falls = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    order = { column: Number(head.dataset.sort), falls };
    sort();
  });
}

function updateStatus() {
  button.disabled = ticked.size < 2;
  const hint = ["Select two runs to compare them.", "Select one more run to compare."][ticked.size];
  statusText.textContent = hint === undefined ? `${ticked.size} runs selected.` : hint;
}

function restore() {
  const there = new Set();
  for (const row of rows.rows) {
    const box = row.querySelector("input");
    if (!box) continue;
    there.add(row.dataset.run);
    box.checked = ticked.has(row.dataset.run);
  }
  for (const path of ticked) if (!there.has(path)) ticked.delete(path);
}

rows.addEventListener("change", (event) => {
  const path = event.target.closest("tr").dataset.run;
  if (event.target.checked) ticked.add(path); else ticked.delete(path);
  updateStatus();
});

button.addEventListener("click", () => {
  const asked = new URLSearchParams([...ticked].map((path) => ["run", path]));
  location.href = `/compare?${asked}`;
});

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  statusText.textContent = `Copied: ${text}`;
}

document.addEventListener("click", (event) => {
  const text = event.target.dataset && event.target.dataset.copy;
  if (text !== undefined) copy(text);
});
find.addEventListener("input", filter);

// Where the focus is: the run, and which of its controls.
function place() {
  const row = document.activeElement && document.activeElement.closest("#rows tr");
  if (!row) return null;
  return [row.dataset.run, [...row.querySelectorAll("a, input, button")].indexOf(document.activeElement)];
}

async function refresh() {
  try {
    const update = await (await fetch("/runs")).json();
    if (update.html !== displayed) {
      const focused = place();
      displayed = update.html;
      rows.innerHTML = update.html;
      document.getElementById("counts").innerHTML = update.counts;
      sort();
      filter();
      const count = ticked.size;
      restore();
      if (ticked.size !== count) updateStatus();
      if (focused) {
        const row = [...rows.rows].find((each) => each.dataset.run === focused[0]);
        if (row) [...row.querySelectorAll("a, input, button")][focused[1]]?.focus();
      }
    }
  } catch { /* the server is stopped: what was displayed stays */ }
  setTimeout(refresh, 3000);
}
setTimeout(refresh, 3000);
// A browser that goes back may keep ticks.
for (const row of rows.rows) if (row.querySelector("input:checked")) ticked.add(row.dataset.run);
updateStatus();
