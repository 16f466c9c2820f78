/** JSON Schema, as far as a form needs it. The server checks what is sent: this only asks for it. */

export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  definitions?: Record<string, Schema>;
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  format?: string;
  maxLength?: number;
}

export type Kind = "text" | "long" | "integer" | "number" | "flag" | "choice" | "object" | "list" | "date" | "moment" | "json";

/** The schema behind references, and whether null is allowed beside it. */
export function resolved(schema: Schema, root: Schema, depth = 0): { schema: Schema; nullable: boolean } {
  if (depth > 20) return { schema: {}, nullable: false };
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop() ?? "";
    const found = root.$defs?.[name] ?? root.definitions?.[name];
    if (!found) return { schema: {}, nullable: false };
    const { $ref: _, ...rest } = schema;
    return resolved({ ...found, ...rest }, root, depth + 1);
  }
  const any = schema.anyOf ?? schema.oneOf;
  if (any) {
    const rest = any.filter((one) => one.type !== "null");
    const nullable = rest.length < any.length;
    if (rest.length !== 1) return { schema, nullable };
    const { anyOf: _, oneOf: __, ...own } = schema;
    const inner = resolved({ ...rest[0]!, ...own }, root, depth + 1);
    return { schema: inner.schema, nullable: inner.nullable || nullable };
  }
  if (schema.allOf?.length === 1) {
    const { allOf: _, ...own } = schema;
    return resolved({ ...schema.allOf[0]!, ...own }, root, depth + 1);
  }
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((one) => one !== "null");
    if (types.length === 1) return { schema: { ...schema, type: types[0]! }, nullable: types.length < schema.type.length };
  }
  return { schema, nullable: false };
}

export function kindOf(schema: Schema): Kind {
  if (schema.enum?.length || schema.const !== undefined) return "choice";
  switch (schema.type) {
    case "boolean":
      return "flag";
    case "integer":
      return "integer";
    case "number":
      return "number";
    case "string":
      if (schema.format === "date") return "date";
      if (schema.format === "date-time") return "moment";
      return (schema.maxLength ?? 0) > 200 ? "long" : "text";
    case "object":
      return schema.properties && Object.keys(schema.properties).length ? "object" : "json";
    case "array":
      return schema.items ? "list" : "json";
    default:
      return "json";
  }
}

/** What a form begins with; undefined for what is to be left out until it is given. */
export function initial(schema: Schema, root: Schema, required: boolean, depth = 0): unknown {
  const found = resolved(schema, root);
  if (found.schema.default !== undefined) return found.schema.default;
  if (found.schema.const !== undefined) return found.schema.const;
  if (!required || found.nullable || depth > 6) return undefined;
  switch (kindOf(found.schema)) {
    case "flag":
      return false;
    case "list":
      return [];
    case "object":
      return Object.fromEntries(
        Object.entries(found.schema.properties!)
          .map(([name, one]) => [name, initial(one, root, found.schema.required?.includes(name) ?? false, depth + 1)] as const)
          .filter(([, value]) => value !== undefined),
      );
    default:
      return undefined;
  }
}

export const words = (name: string): string => {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
};
