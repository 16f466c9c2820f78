/** The one box: an id, the beginning of one, `status:failed`, `customer:ann`, `input.order.id=17`, `error=timeout`. */

const FILTERS = ["status", "program", "queue", "owner", "parked", "parent", "since", "until"];
const TOKEN = /(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g;

/** What the words mean, as the query of the list of runs. */
export function meaning(text: string): Record<string, string[]> {
  const found: Record<string, string[]> = {};
  const rest: string[] = [];
  for (const token of text.match(TOKEN) ?? []) {
    const filter = /^([A-Za-z_][\w.-]*):(.+)$/.exec(token);
    if (!filter || /^(input|output)\b.*=|^error=/.test(token)) rest.push(token);
    else if (FILTERS.includes(filter[1]!)) (found[filter[1]!] ??= []).push(plain(filter[2]!));
    else (found.tag ??= []).push(`${filter[1]}:${plain(filter[2]!)}`);
  }
  if (rest.length) found.q = [rest.join(" ")];
  return found;
}

export const isSearch = (text: string): boolean => /^(input|output)(\.[^=]*)?=|^error=/.test(text);

const plain = (text: string) => (/^".*"$/.test(text) ? text.slice(1, -1).replace(/\\(.)/g, "$1") : text);
