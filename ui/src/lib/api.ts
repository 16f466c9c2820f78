import { parse, print } from "./exact";
import type { FieldError, ProblemBody } from "./types";

export type Params = Record<string, string | number | boolean | null | undefined | string[]>;

const root = new URL("api/v1/", document.baseURI);

/** An answer that is no success, as the server explains it. */
export class Problem extends Error {
  status: number;
  code: string;
  hint: string;
  fields: FieldError[];

  constructor(status: number, body: Partial<ProblemBody>) {
    super(body.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.fields = body.errors ?? [];
  }
}

export function address(path: string, params: Params = {}): URL {
  const url = new URL(path, root);
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const one of value) url.searchParams.append(name, one);
    else if (value !== undefined && value !== null && value !== "" && value !== false) {
      url.searchParams.set(name, String(value));
    }
  }
  return url;
}

async function ask(url: URL, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server does not answer", code: "offline", hint: "it is asked again by itself" });
  }
  if (response.ok) return response;
  let body: Partial<ProblemBody> = {};
  try {
    body = (await response.json()) as ProblemBody;
  } catch {
    // A proxy answered.
  }
  const problem = new Problem(response.status, body);
  // The token or the session has expired, or there was none.
  if (response.status === 401 && !url.pathname.endsWith("/session")) dispatchEvent(new CustomEvent("signedout", { detail: problem }));
  throw problem;
}

/** `plain`: there are no values of users in the answer, and it may be long. */
export async function get<T>(
  path: string,
  params?: Params,
  options: { signal?: AbortSignal; plain?: boolean } = {},
): Promise<T> {
  const response = await ask(address(path, params), { signal: options.signal ?? null });
  return (options.plain ? await response.json() : parse(await response.text())) as T;
}

export async function text(path: string, params?: Params): Promise<string> {
  return (await ask(address(path, params), {})).text();
}

interface Sent {
  params?: Params | undefined;
  /** Names the request: sent again, it has one effect. */
  key?: string | undefined;
  /** The ETag of what was looked at. */
  match?: string | undefined;
}

export async function send<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown, sent: Sent = {}): Promise<T> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (sent.key) headers["Idempotency-Key"] = sent.key;
  if (sent.match) headers["If-Match"] = sent.match;
  const response = await ask(address(path, sent.params), { method, headers, body: body === undefined ? null : print(body) });
  const answer = await response.text();
  return (answer ? parse(answer) : null) as T;
}

export const post = <T>(path: string, body: unknown = {}, sent: Sent = {}) => send<T>("POST", path, body, sent);

export async function upload<T>(path: string, data: Blob, params?: Params): Promise<T> {
  const headers = { "Content-Type": "application/octet-stream" };
  return parse(await (await ask(address(path, params), { method: "POST", headers, body: data })).text()) as T;
}

/** A name for a request, new for each thing that a person wants done. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(12))].map((n) => n.toString(16).padStart(2, "0")).join("");
