#!/usr/bin/env bash
# furnish.sh DIRECTORY: creates what the servers of a world offer to programs: a git repository, and
# packages for pip, npm and cargo, below DIRECTORY/www. Creates keys for SSH and a Java program in
# DIRECTORY.
set -euo pipefail
cd -- "$1"
www="$PWD/www"

if command -v git >/dev/null; then
    mkdir -p "$www/git" && git init -q --bare "$www/git/library.git"
    git init -q source
    (
        cd source
        echo "of the library" > file
        git add file
        git -c user.name=x -c user.email=x commit -qm first
        git push -q "$www/git/library.git" HEAD:refs/heads/main
    )
    git -C "$www/git/library.git" symbolic-ref HEAD refs/heads/main
    git -C "$www/git/library.git" update-server-info
fi

# Only root can log in other users.
if command -v dropbear >/dev/null && command -v ssh-keygen >/dev/null && [ "$(id -u)" -eq 0 ]; then
    ssh-keygen -q -t ed25519 -N '' -f user_key
    install -D -m 600 user_key.pub git/.ssh/authorized_keys
    dropbearkey -t ed25519 -f host_key | sed -n 's/^ssh-/allowed.test &/p' > known_hosts
fi

python3 - "$www" <<'END'
import base64, hashlib, io, json, os, sys, tarfile, zipfile

www = sys.argv[1]


def write(name, content):
    path = os.path.join(www, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def archive(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


# pip
wheel = io.BytesIO()
information = "library-1.0.dist-info"
files = {
    "library.py": "",
    f"{information}/METADATA": "Metadata-Version: 2.1\nName: library\nVersion: 1.0\n",
    f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
files[f"{information}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{information}/RECORD"])
with zipfile.ZipFile(wheel, "w") as packed:
    for name, text in files.items():
        packed.writestr(name, text)
write("files/library-1.0-py3-none-any.whl", wheel.getvalue())
write("simple/library/index.html", '<a href="/files/library-1.0-py3-none-any.whl">library-1.0-py3-none-any.whl</a>')

# npm
packed = archive({"package/package.json": '{"name": "library", "version": "1.0.0"}'})
write("files/library-1.0.0.tgz", packed)
sha = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
distribution = {"tarball": "http://allowed.test/files/library-1.0.0.tgz", "integrity": sha}
version = {"name": "library", "version": "1.0.0", "dist": distribution}
write("npm/library", json.dumps({"name": "library", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}))

# cargo
packed = archive({
    "library-1.0.0/Cargo.toml": '[package]\nname = "library"\nversion = "1.0.0"\n',
    "library-1.0.0/src/lib.rs": "",
})
write("crates/library/1.0.0/download", packed)
write("index/config.json", json.dumps({"dl": "http://allowed.test/crates"}))
entry = {"name": "library", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
write("index/li/br/library", json.dumps({**entry, "cksum": hashlib.sha256(packed).hexdigest()}))
END

cat > Main.java <<'END'
public class Main {
    public static void main(String[] arguments) throws Exception {
        try (var input = new java.net.URL(arguments[0]).openStream()) {
            System.out.write(input.readAllBytes());
            System.out.flush();
        }
    }
}
END
