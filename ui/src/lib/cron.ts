/** Cron expressions in words, where they are simple; others speak for themselves. */

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const two = (text: string) => text.padStart(2, "0");

export function words(cron: string): string {
  const parts = cron.trim().split(/\s+/);
  if (parts.length !== 5) return "";
  const [minute, hour, day, month, weekday] = parts as [string, string, string, string, string];
  const number = /^\d+$/;
  const every = /^\*\/(\d+)$/;
  if (month !== "*") return "";
  if (cron.trim() === "* * * * *") return "every minute";
  const minutes = every.exec(minute);
  if (minutes && hour === "*" && day === "*" && weekday === "*") return `every ${minutes[1]} minutes`;
  if (!number.test(minute)) return "";
  if (hour === "*" && day === "*" && weekday === "*") return minute === "0" ? "every hour" : `at minute ${minute} of every hour`;
  const hours = every.exec(hour);
  if (hours && day === "*" && weekday === "*") return `every ${hours[1]} hours${minute === "0" ? "" : `, at minute ${minute}`}`;
  if (!number.test(hour)) return "";
  const at = `at ${two(hour)}:${two(minute)}`;
  if (day === "*" && weekday === "*") return `every day ${at}`;
  if (day === "*" && /^[0-7]$/.test(weekday)) return `every ${DAYS[Number(weekday)]} ${at}`;
  if (day === "*" && weekday === "1-5") return `on weekdays ${at}`;
  if (number.test(day) && weekday === "*") return `on day ${day} of every month ${at}`;
  return "";
}
