/** The same thing on the command line, and over HTTP. */
import { address, type Params } from "./api";
import { print } from "./exact";

export interface Commands {
  cli: string;
  curl: string;
}

export const quote = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** `perdure` with these words; what is null is left out. */
export function cli(...words: (string | number | null | undefined | false)[]): string {
  return ["perdure", ...words.filter((word) => word !== null && word !== undefined && word !== false && word !== "").map((word) => quote(String(word)))].join(" ");
}

export function curl(method: string, path: string, body?: unknown, params?: Params): string {
  const url = address(path, params).href;
  if (method === "GET") return `curl ${quote(url)}`;
  const sent = body === undefined ? "" : ` -H 'Content-Type: application/json' -d ${quote(print(body))}`;
  return `curl -X ${method} ${quote(url)}${sent}`;
}
