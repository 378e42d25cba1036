// Tables that stay in order while their rows change. All that others have said is set as text, never as markup.

/** One cell: text, or an element that was made here. One that says the same stays: it may be in somebody's hand. */
function fill(cell, content) {
  if (content instanceof Node) {
    if (cell.childNodes.length !== 1 || !cell.firstChild.isEqualNode(content)) cell.replaceChildren(content);
  } else if (cell.textContent !== content) {
    cell.textContent = content;
  }
}

/** Have exactly these elements in another one, in this order. Who is in its place is not touched, and keeps the focus. */
export function arrange(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((element, at) => {
    const there = parent.children[at] ?? null;
    if (there !== element) parent.insertBefore(element, there);
  });
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : a < b ? -1 : 1;
}

/**
 * A table that a click on a head sorts.
 *
 * columns: [{title, value(row) to sort by, show(row) text or element, kind: class of the cells, isBad(row)}]
 * key(row): what a row is known by; sort: {column, isDown}, or null: as the rows come.
 */
export class Table {
  constructor(element, columns, key, sort = null) {
    this.columns = columns;
    this.key = key;
    this.sort = sort;
    this.rows = [];
    this.lines = new Map();
    const head = element.createTHead().insertRow();
    this.heads = columns.map((column, index) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (column.kind) cell.className = column.kind;
      if (sort === null) {
        cell.textContent = column.title;
      } else {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = column.title;
        button.addEventListener("click", () => this.sortBy(index));
        cell.append(button);
      }
      head.append(cell);
      return cell;
    });
    this.body = element.createTBody();
  }

  sortBy(column) {
    const isSame = this.sort.column === column;
    this.sort = { column, isDown: isSame ? !this.sort.isDown : this.columns[column].kind === "number" };
    this.show(this.rows);
  }

  show(rows) {
    this.rows = rows;
    const ordered = [...rows];
    if (this.sort !== null) {
      const { column, isDown } = this.sort;
      const value = this.columns[column].value;
      ordered.sort((a, b) => (isDown ? compare(value(b), value(a)) : compare(value(a), value(b))));
      this.heads.forEach((head, index) => {
        if (index === column) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
    }
    arrange(this.body, ordered.map((row) => this.line(row)));
    const keys = new Set(ordered.map(this.key));
    for (const key of this.lines.keys()) if (!keys.has(key)) this.lines.delete(key);
  }

  line(row) {
    const key = this.key(row);
    let line = this.lines.get(key);
    if (line === undefined) {
      line = document.createElement("tr");
      for (const column of this.columns) {
        const cell = line.insertCell();
        if (column.kind) cell.className = column.kind;
      }
      this.lines.set(key, line);
    }
    this.columns.forEach((column, index) => {
      const cell = line.cells[index];
      fill(cell, column.show(row));
      cell.classList.toggle("bad", Boolean(column.isBad?.(row)));
    });
    return line;
  }
}
