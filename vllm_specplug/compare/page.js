// Tables with a head are sorted by it. Without this script they are the same tables, in the order of the report.
"use strict";
const NUMBER = /^[-+]?\d[\d,]*(?:\.\d+)?(?=$|[\s%x])/; // '1.42x (1.31 to 1.55)', '40 %', '1,024'; no date, no version

const key = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const number = NUMBER.exec(text);
  return { text, number: number && Number(number[0].replaceAll(",", "")), empty: text === "" || text === "-" };
};

const compare = (one, other) =>
  one.number !== null && other.number !== null
    ? one.number - other.number
    : one.text.localeCompare(other.text, "en", { numeric: true });

for (const table of document.querySelectorAll("table")) {
  if (table.tHead === null) continue;
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const hint = document.createElement("span");
  hint.className = "hidden";
  hint.textContent = ", sorted by its column headings";
  table.caption.append(hint);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => ({ row, key: key(row, column) }));
      // What has no value stays at the end either way.
      rows.sort((a, b) => a.key.empty - b.key.empty || sign * compare(a.key, b.key));
      body.append(...rows.map(({ row }) => row));
    });
  });
}
