/**
 * Where the nodes of a graph stand: in ranks from top to bottom, so that edges are short and few of them cross.
 *
 * As in every layout of layers: ranks by the longest way, dummies where an edge passes a rank, an order within each rank by the
 * median of the neighbours, and places that follow from the order.
 */
import type { GraphView } from "../lib/types";

export interface Point {
  x: number;
  y: number;
}
export interface Box extends Point {
  width: number;
}
interface Item extends Box {
  rank: number;
  order: number;
  up: Item[];
  down: Item[];
}

export const HEIGHT = 34;
const GAP = 26, RANK = 44, MARGIN = 14;

export function arranged(view: GraphView): { boxes: Map<string, Box>; lines: Point[][]; width: number; height: number } {
  const items = new Map<string, Item>();
  const made = (width: number, rank: number): Item => ({ x: 0, y: 0, width, rank, order: 0, up: [], down: [] });
  for (const node of view.nodes) items.set(node.id, made(Math.max(90, Math.min(250, node.label.length * 7.3 + 44)), 0));
  const all = [...items.values()];

  // Edges that lead back to where a way has come from are turned for the layout.
  const back = new Set<number>(), open = new Set<string>(), seen = new Set<string>();
  const visit = (id: string) => {
    if (seen.has(id)) return;
    seen.add(id);
    open.add(id);
    view.edges.forEach((edge, n) => {
      if (edge.source !== id) return;
      if (open.has(edge.target)) back.add(n);
      else visit(edge.target);
    });
    open.delete(id);
  };
  for (const node of view.nodes) visit(node.id);
  const ends = view.edges.map((edge, n): [Item, Item] => {
    const pair: [Item, Item] = [items.get(edge.source)!, items.get(edge.target)!];
    return back.has(n) ? [pair[1], pair[0]] : pair;
  });
  for (let again = true, rounds = 0; again && rounds <= all.length; rounds++) {
    again = false;
    for (const [a, b] of ends) {
      if (a === b || b.rank > a.rank) continue;
      b.rank = a.rank + 1;
      again = true;
    }
  }

  const ranks: Item[][] = [];
  const put = (item: Item) => {
    item.order = (ranks[item.rank] ??= []).push(item) - 1;
    return item;
  };
  all.forEach(put);
  const ways = ends.map(([a, b]) => {
    const way = [a];
    for (let rank = a.rank + 1; rank < b.rank; rank++) way.push(put(made(6, rank)));
    way.push(b);
    for (let i = 1; i < way.length && a !== b; i++) {
      way[i - 1]!.down.push(way[i]!);
      way[i]!.up.push(way[i - 1]!);
    }
    return way;
  });

  const median = (of: Item[], by: (item: Item) => number, otherwise: number) => {
    if (!of.length) return otherwise;
    const sorted = of.map(by).sort((a, b) => a - b), middle = (sorted.length - 1) / 2;
    return (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle)]!) / 2;
  };
  const rounds = (count: number, work: (rank: Item[], near: (item: Item) => Item[], down: boolean) => void) => {
    for (let round = 0; round < count; round++) {
      const down = round % 2 === 0;
      for (const rank of down ? ranks : [...ranks].reverse()) work(rank, (item) => (round > count - 3 ? [...item.up, ...item.down] : down ? item.up : item.down), down);
    }
  };
  rounds(12, (rank, near) => {
    const at = new Map(rank.map((item) => [item, median(near(item), (one) => one.order, item.order)]));
    rank.sort((a, b) => at.get(a)! - at.get(b)! || a.order - b.order).forEach((item, n) => (item.order = n));
  });
  const middle = (item: Item) => item.x + item.width / 2;
  const left = (rank: Item[], n: number) => (n ? rank[n - 1]!.x + rank[n - 1]!.width + GAP : -Infinity);
  for (const rank of ranks) rank.forEach((item, n) => (item.x = Math.max(0, left(rank, n))));
  const right = (rank: Item[], n: number) => (n < rank.length - 1 ? rank[n + 1]!.x - GAP - rank[n]!.width : Infinity);
  // Each wants to stand by its neighbours, and keeps the distance to the one beside it: from the left, and from the right.
  rounds(24, (rank, near, down) => {
    const wanted = rank.map((item) => median(near(item), middle, middle(item)) - item.width / 2);
    if (down) rank.forEach((item, n) => (item.x = Math.max(left(rank, n), wanted[n]!)));
    else for (let n = rank.length - 1; n >= 0; n--) rank[n]!.x = Math.min(right(rank, n), wanted[n]!);
  });

  const least = Math.min(...ranks.flat().map((item) => item.x));
  for (const item of ranks.flat()) {
    item.x += MARGIN - least;
    item.y = MARGIN + item.rank * (HEIGHT + RANK);
  }
  const lines = ways.map((way, n) => {
    const [first, last] = [way[0]!, way.at(-1)!];
    // What leads to itself goes around its right side.
    if (first === last) return [[0, 8], [18, 8], [18, HEIGHT - 8], [0, HEIGHT - 8]].map(([x, y]) => ({ x: first.x + first.width + x!, y: first.y + y! }));
    const points = way.flatMap((item, i): Point[] => {
      const x = middle(item);
      if (i === 0) return [{ x, y: item.y + HEIGHT }];
      return i === way.length - 1 ? [{ x, y: item.y }] : [{ x, y: item.y }, { x, y: item.y + HEIGHT }];
    });
    return back.has(n) ? points.reverse() : points;
  });
  return {
    boxes: items,
    lines,
    width: Math.max(0, ...all.map((item) => item.x + item.width)) + MARGIN + 20,
    height: 2 * MARGIN + ranks.length * (HEIGHT + RANK) - RANK,
  };
}
