/** The rows of a timeline: ops within the ops and tasks that they belong to, many of one name folded into one row. */
import type { OpColumns } from "./ops";

interface Node {
  path: string;
  name: string;
  /** The op; null for a task or an item, which only has ops. */
  at: number | null;
  kids: Node[];
}

export interface Row {
  key: string;
  kind: "op" | "scope" | "group";
  name: string;
  depth: number;
  at: number | null;
  /** The ops of a group, or within a scope. */
  members: number[];
  expandable: boolean;
  expanded: boolean;
}

// So many ops of one name under one parent are shown as one row at first.
const MANY = 12;

export interface Wanted {
  within: string;
  /** What a person has opened or closed, by key. */
  toggled: ReadonlyMap<string, boolean>;
  text: string;
  badOnly: boolean;
}

const bad = (status: string) => ["failed", "retrying", "unknown", "timed_out", "rejected", "blocked"].includes(status);
const plainName = (segment: string) => segment.replace(/(\[\d+\])+$/, "").replace(/:\d+$/, "");

function parentOf(path: string): string {
  const slash = path.lastIndexOf("/");
  const item = /\[\d+\]$/.exec(path);
  // `resize:0[3]` is an item of `resize:0`.
  return item && item.index > slash + 1 ? path.slice(0, item.index) : slash < 0 ? "" : path.slice(0, slash);
}

export function rows(ops: OpColumns, wanted: Wanted): Row[] {
  const root: Node = { path: wanted.within, name: "", at: null, kids: [] };
  const nodes = new Map<string, Node>([[wanted.within, root]]);
  const node = (path: string): Node => {
    let found = nodes.get(path);
    if (!found) {
      const parent = parentOf(path);
      const outside = wanted.within !== "" && !parent.startsWith(wanted.within);
      found = { path, name: path.slice(path.lastIndexOf("/") + 1), at: null, kids: [] };
      nodes.set(path, found);
      (outside || path === "" ? root : node(parent)).kids.push(found);
    }
    return found;
  };
  const text = wanted.text.toLowerCase();
  const filtered = text !== "" || wanted.badOnly;
  for (let at = 0; at < ops.length; at++) {
    if (wanted.badOnly && !bad(ops.status[at]!)) continue;
    if (text && !ops.path[at]!.toLowerCase().includes(text) && ops.source[at]!.toLowerCase() !== text) continue;
    node(ops.path[at]!).at = at;
  }

  const found: Row[] = [];
  const all = (one: Node, into: number[]): number[] => {
    if (one.at !== null) into.push(one.at);
    for (const kid of one.kids) all(kid, into);
    return into;
  };
  const emit = (one: Node, depth: number) => {
    const expandable = one.kids.length > 0;
    const expanded = expandable && (wanted.toggled.get(one.path) ?? (filtered || depth < 3));
    found.push({
      key: one.path,
      kind: one.at === null ? "scope" : "op",
      name: one.name,
      depth,
      at: one.at,
      members: one.at === null || expandable ? all(one, []) : [],
      expandable,
      expanded,
    });
    if (expanded) inside(one, depth + 1);
  };
  const inside = (one: Node, depth: number) => {
    const names = new Map<string, Node[]>();
    for (const kid of one.kids) {
      const name = plainName(kid.name);
      const same = names.get(name);
      if (same) same.push(kid);
      else names.set(name, [kid]);
    }
    const told = new Set<string>();
    for (const kid of one.kids) {
      const name = plainName(kid.name), same = names.get(name)!;
      if (same.length <= MANY) {
        emit(kid, depth);
        continue;
      }
      if (told.has(name)) continue;
      told.add(name);
      const key = `${one.path}\u0000${name}`;
      const expanded = wanted.toggled.get(key) ?? false;
      found.push({ key, kind: "group", name, depth, at: null, members: same.flatMap((node) => all(node, [])), expandable: true, expanded });
      if (expanded) for (const node of same) emit(node, depth + 1);
    }
  };
  inside(root, 0);
  return found;
}
