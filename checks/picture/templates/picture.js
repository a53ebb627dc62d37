"use strict";
// One cursor a figure: a cell, moved by pointer and keys, told in words under the picture.
for (const figure of document.querySelectorAll("figure.map")) {
  const scroll = figure.querySelector(".scroll");
  if (!scroll) continue;
  const grid = figure.querySelector(".grid"), cursor = figure.querySelector(".cursor");
  const told = figure.querySelector(".told");
  const width = Number(figure.dataset.column), height = Number(figure.dataset.row), first = Number(figure.dataset.first);
  const columns = [...figure.querySelectorAll(".column")], names = [...figure.querySelectorAll(".grid .row")];
  const lines = new Map([...figure.closest(".work").querySelectorAll(".line[data-moment]")].map(l => [Number(l.dataset.moment), l]));
  const rows = names.map(() => []);
  for (const spot of figure.querySelectorAll(".spot")) rows[Number(spot.dataset.row)].push(spot);
  const guiltyColumn = columns.findIndex(c => c.classList.contains("guilty"));
  const guiltyRow = Number(figure.dataset.start);
  let row = guiltyRow, column = guiltyColumn < 0 ? columns.length - 1 : guiltyColumn, kept = false;

  const left = at => Number(columns[at].dataset.x);
  const head = Number(figure.querySelector(".heads").getAttribute("height"));
  const nameWidth = left(0);

  // The browser's own tooltip would cover the picture: the words stand under it.
  for (const spot of rows.flat()) {
    spot.dataset.text = spot.firstElementChild.textContent;
    spot.firstElementChild.remove();
  }

  function tell() {
    const moment = first + column;
    const spot = rows[row].find(s => Number(s.dataset.first) <= moment && moment <= Number(s.dataset.last));
    if (!spot) return;
    cursor.setAttribute("x", String(left(column) + 1));
    cursor.setAttribute("y", String(Number(spot.getAttribute("y")) + 1));
    cursor.setAttribute("visibility", "visible");
    const name = document.createElement("b");
    name.textContent = names[row].querySelector(".name").textContent;
    told.querySelector(".told-head").replaceChildren(name, (moment ? " after " : " ") + columns[column].dataset.title);
    told.querySelector(".told-text").textContent = spot.dataset.text;
    told.classList.toggle("kept", kept);
    for (const [at, line] of lines) line.classList.toggle("at", at === moment);
  }

  // Brings the cell into view, beside the names and titles that stay; centred when asked.
  function reveal(centre) {
    const x = left(column), y = Number(rows[row][0].getAttribute("y"));
    const across = scroll.clientWidth, down = scroll.clientHeight;
    if (centre) {
      scroll.scrollLeft = Math.max(x - across * 0.7, x + width + 8 - across);
      scroll.scrollTop = y + head - down * 0.6;
      return;
    }
    if (x - nameWidth < scroll.scrollLeft) scroll.scrollLeft = x - nameWidth;
    if (x + width > scroll.scrollLeft + across) scroll.scrollLeft = x + width - across;
    if (y < scroll.scrollTop) scroll.scrollTop = y;
    if (y + head + height > scroll.scrollTop + down) scroll.scrollTop = y + head + height - down;
  }

  function under(event) {
    const spot = event.target.closest ? event.target.closest(".spot") : null;
    if (!spot) return false;
    const box = grid.getBoundingClientRect(), scale = grid.viewBox.baseVal.width / box.width;
    row = Number(spot.dataset.row);
    column = Math.min(columns.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) * scale - left(0)) / width)));
    return true;
  }

  grid.addEventListener("pointermove", event => { if (!kept && under(event)) tell(); });
  grid.addEventListener("click", event => {
    const before = [row, column].join();
    if (!under(event)) return;
    kept = !kept || before !== [row, column].join();
    tell();
  });
  const moves = {
    ArrowLeft: () => column--, ArrowRight: () => column++, ArrowUp: () => row--, ArrowDown: () => row++,
    Home: () => column = 0, End: () => column = columns.length - 1,
    g: () => { row = guiltyRow; column = guiltyColumn < 0 ? columns.length - 1 : guiltyColumn; },
    Escape: () => kept = false,
  };
  scroll.addEventListener("keydown", event => {
    const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
    row = Math.min(names.length - 1, Math.max(0, row));
    column = Math.min(columns.length - 1, Math.max(0, column));
    tell();
    reveal(false);
  });
  for (const [moment, line] of lines) line.addEventListener("click", () => {
    if (moment < first || moment - first >= columns.length || String(getSelection())) return;
    column = moment - first;
    kept = true;
    tell();
    reveal(false);
  });
  const guiltyLine = figure.closest(".work").querySelector(".line.guilty");
  function settle() {
    reveal(true);
    if (guiltyLine) guiltyLine.parentElement.scrollTop = guiltyLine.offsetTop - guiltyLine.parentElement.clientHeight * 0.6;
  }
  settle();
  const outer = figure.closest("details");
  if (outer) outer.addEventListener("toggle", settle, { once: true });
}

for (const button of document.querySelectorAll(".copybutton")) {
  const text = button.closest(".list").querySelector("pre");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
}
