/** What statuses look like: a colour and a shape for each, so that neither alone has to be seen. */
import type { RunStatus } from "./types";

export const STATUSES: RunStatus[] = ["queued", "running", "waiting", "paused", "parked", "completed", "failed", "cancelled", "bailed"];
export const OPEN: RunStatus[] = ["queued", "running", "waiting", "paused", "parked"];
export const ended = (status: string): boolean => ["completed", "failed", "cancelled", "bailed"].includes(status);

/** The tone of a status of a run, a step or a wait. */
export function tone(status: string): string {
  switch (status) {
    case "succeeded":
      return "completed";
    case "retrying":
    case "unknown":
      return "parked";
    case "timed_out":
    case "rejected":
      return "failed";
    case "skipped":
    case "blocked":
      return "cancelled";
    default:
      return STATUSES.includes(status as RunStatus) ? status : "queued";
  }
}

export const words = (status: string): string => status.replace("_", " ");

/** A number for people. */
export const count = (number: number): string => number.toLocaleString("en");
export const plural = (number: number, one: string, many = `${one}s`): string => `${count(number)} ${number === 1 ? one : many}`;

let ids = 0;
/** An id for an element that another refers to. */
export const newId = (): string => `e${++ids}`;
