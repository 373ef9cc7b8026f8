/** Paths on the wire are `file:` URIs, whose percent-encoding carries any bytes. */

/** An absolute path, or a `file:` URL. */
export type PathLike = string | URL;

export function toUri(path: PathLike): string {
  const text = typeof path === "string" ? path : path.href;
  if (text.startsWith("file:")) return text;
  if (!text.startsWith("/")) {
    throw new TypeError(
      `"${text}" is not an absolute path; paths are those of the machine, such as /tmp/x`,
    );
  }
  return "file://" + text.split("/").map(encodeURIComponent).join("/");
}

/** The native path, or the URI itself if the path is not UTF-8. `toUri` accepts both. */
export function fromUri(uri: string): string {
  if (!uri.startsWith("file://")) return uri;
  try {
    return decodeURIComponent(uri.slice("file://".length));
  } catch {
    return uri;
  }
}

/** The last component, as `fromUri` gives it. */
export function nameOf(uri: string): string {
  const path = fromUri(uri);
  return path.slice(path.lastIndexOf("/") + 1);
}
