/** Write src/lib/types.ts, or another file, from docs/openapi.json: an interface for each schema. */
import { readFileSync, writeFileSync } from "node:fs";

const document = JSON.parse(readFileSync(new URL("../../docs/openapi.json", import.meta.url), "utf8"));
const out = ["// Made from the OpenAPI document by `make ui`.", ""];

function type(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return [...new Set(any.map(type))].join(" | ");
  switch (Array.isArray(schema.type) ? "union" : schema.type) {
    case "union":
      return schema.type.map((one) => type({ ...schema, type: one })).join(" | ");
    case "string":
      return "string";
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "boolean";
    case "null":
      return "null";
    case "array":
      return `${wrapped(type(schema.items ?? {}))}[]`;
    case "object":
      return schema.additionalProperties ? `Record<string, ${type(schema.additionalProperties)}>` : "Record<string, Value>";
    default:
      return "Value";
  }
}

out.push("/** JSON of users: text, numbers, lists, objects. */", "export type Value = any;", "");

const wrapped = (text) => (text.includes(" | ") ? `(${text})` : text);

for (const [name, schema] of Object.entries(document.components.schemas)) {
  if (schema.description) out.push(`/** ${schema.description.split("\n")[0]} */`);
  if (schema.type !== "object" || !schema.properties) {
    out.push(`export type ${name} = ${type(schema)};`, "");
    continue;
  }
  // An answer has all of its fields; a request may leave out those with a default.
  const required = new Set(name.endsWith("Body") ? (schema.required ?? []) : Object.keys(schema.properties));
  out.push(`export interface ${name} {`);
  for (const [field, of] of Object.entries(schema.properties)) {
    out.push(`  ${/^[a-z_$][\w$]*$/i.test(field) ? field : JSON.stringify(field)}${required.has(field) ? "" : "?"}: ${type(of)};`);
  }
  out.push("}", "");
}
writeFileSync(process.argv[2] ?? new URL("../src/lib/types.ts", import.meta.url), out.join("\n"));
