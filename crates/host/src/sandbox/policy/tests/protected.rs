//! `.git`, `.agents` and `.codex` directly below a writable root.

use super::*;
use crate::sandbox::policy::Hold;

const NAMES: [&str; 3] = [".git", ".agents", ".codex"];

#[test]
fn protected_names_are_read_only_even_if_missing() {
    let existing = NAMES
        .iter()
        .fold(FakeNames::default(), |names, name| names.directory(format!("/src/app/{name}")));
    for names in [FakeNames::default(), existing] {
        let asked = asked(&["write /src/app"]).on(names);
        for name in NAMES {
            let path = format!("/src/app/{name}");
            let (inside, deeper) = (format!("{path}/hooks"), format!("/src/app/sub/{name}"));
            asked.gives(&[(&path, Read), (&inside, Read), (&deeper, Write)]);
        }
        let carve_outs = asked.policy().carve_outs();
        assert_eq!(carve_outs.len(), 3);
        assert!(carve_outs.iter().all(|carve_out| carve_out.protected_name));
    }
}

#[test]
fn an_entry_may_grant_a_protected_name_by_its_path() {
    asked(&["write /src", "write /src/.git"]).gives(&[
        ("/src/.git", Write),
        ("/src/.git/hooks", Write),
        ("/src/.codex", Read),
    ]);
    asked(&["write project_roots", "write project_roots/.git"])
        .workspace("/src")
        .gives(&[("/src/.git", Write), ("/src/.agents", Read)]);
}

#[test]
fn an_entry_inside_a_protected_name_grants_only_its_path() {
    asked(&["write /src", "write /src/.git/objects"]).gives(&[
        ("/src/.git", Read),
        ("/src/.git/hooks", Read),
        ("/src/.git/objects/ab", Write),
        ("/src/.git/objects/.git", Read),
    ]);
}

#[test]
fn an_entry_above_a_protected_name_does_not_grant_it() {
    asked(&["write root", "write /src"]).gives(&[("/.git", Read), ("/src/.git", Read)]);
}

#[test]
fn a_glob_does_not_grant_a_protected_name() {
    let names = FakeNames::default().directory("/src/.git").directory("/src/a");
    for lines in [&["write glob /src/*"][..], &["write /src", "write glob /src/{.git,a}"]] {
        asked(lines).on(names.clone()).gives(&[
            ("/src/.git", Read),
            ("/src/.git/hooks", Read),
            ("/src/a", Write),
            ("/src/a/.git", Read),
        ]);
    }
}

#[test]
fn a_lower_requested_access_is_kept() {
    let policy = asked(&["write /src", "deny /src/.codex", "read /src/.git"]).policy();
    assert_eq!(policy.access(Path::new("/src/.codex")), Deny);
    let kept: Vec<_> =
        policy.rules().iter().map(|rule| (rule.access, rule.protected_name)).collect();
    assert_eq!(kept, [(Write, false), (Read, true), (Deny, false), (Read, true)]);
}

#[test]
fn without_writable_paths_nothing_is_protected() {
    for lines in [&["read /src"][..], &["write /src", "deny /src"], &["read root"]] {
        let policy = asked(lines).workspace("/src").policy();
        assert!(policy.rules().iter().all(|rule| !rule.protected_name), "{policy:?}");
    }
}

#[test]
fn project_roots_inside_a_writable_tree_are_protected() {
    asked(&["write root"]).workspace("/src/app").cwd("/elsewhere/sub").gives(&[
        ("/src/app/.git", Read),
        ("/src/app/sub/.git", Write),
        ("/src/other/.git", Write),
        ("/elsewhere/sub/.git", Read),
    ]);
    asked(&["write root"]).cwd("/src/app").gives(&[("/src/app/.git", Read)]);
    let names = FakeNames::default().symlink("/app", "/src/app").directory("/src/app");
    asked(&["write /src"]).on(names).workspace("/app").gives(&[("/src/app/.git", Read)]);
}

#[test]
fn writable_directories_above_the_working_directory_are_protected() {
    let names = FakeNames::default().directory("/tmp/repo/.git/hooks").directory("/tmp/repo/a/b");
    for lines in [
        &["read root", "write cwd", "write slash_tmp"][..],
        &["read root", "write /tmp"],
        &["read root", "write tmpdir", "write /tmp/repo/a/b"],
    ] {
        let asked = asked(lines).on(names.clone()).cwd("/tmp/repo/a/b").tmpdir("/tmp");
        for name in NAMES {
            for above in ["/tmp", "/tmp/repo", "/tmp/repo/a", "/tmp/repo/a/b"] {
                asked.gives(&[(&format!("{above}/{name}"), Read)]);
            }
            for other in ["/tmp/other", "/tmp/repo/c", "/tmp/repo/a/b/c"] {
                asked.gives(&[(&format!("{other}/{name}"), Write)]);
            }
        }
        asked.gives(&[("/tmp/repo/.git/hooks/pre-commit", Read), ("/tmp/repo/a/x", Write)]);
    }
    // Outside writable directories nothing needs protection.
    let policy = asked(&["read root", "write cwd"]).on(names).cwd("/tmp/repo/a/b").policy();
    assert_eq!(policy.carve_outs().len(), NAMES.len(), "{policy:#?}");
}

#[test]
fn directories_above_a_writable_root_that_another_entry_makes_writable_are_protected() {
    let names = FakeNames::default().directory("/tmp/repo/.git/hooks").directory("/tmp/repo/src/a");
    for lines in [
        &["read root", "write /tmp", "write /tmp/repo/src/a"][..],
        &["read root", "write slash_tmp", "write /tmp/repo/src/a"],
        &["read root", "write slash_tmp", "write glob /tmp/repo/src/*"],
        &["write root", "write /tmp/repo/src/a"],
        &["write /tmp", "read /tmp/repo/src", "write /tmp/repo/src/a"],
    ] {
        let asked = asked(lines).on(names.clone()).cwd("/elsewhere");
        for name in NAMES {
            for above in ["/tmp", "/tmp/repo", "/tmp/repo/src", "/tmp/repo/src/a"] {
                asked.gives(&[(&format!("{above}/{name}"), Read)]);
            }
            asked.gives(&[(&format!("/tmp/other/{name}"), Write)]);
        }
        asked.gives(&[("/tmp/repo/.git/hooks/pre-commit", Read), ("/tmp/repo/x", Write)]);
    }
    // A name that an entry grants stays granted.
    asked(&["write /tmp", "write /tmp/repo/src", "write /tmp/repo/.git"])
        .on(names.clone())
        .gives(&[("/tmp/repo/.git/hooks", Write), ("/tmp/repo/.codex", Read)]);
    // Nothing is protected above a file or a temporary directory: neither is a project.
    let names = names.file("/tmp/notes/today").directory("/tmp/mine/now");
    asked(&["write slash_tmp", "write tmpdir", "write /tmp/notes/today"])
        .on(names.clone())
        .tmpdir("/tmp/mine/now")
        .gives(&[("/tmp/notes/.git", Write), ("/tmp/mine/.git", Write)]);
    // Outside writable directories nothing needs protection.
    let policy = asked(&["read root", "write /tmp/repo/src/a"]).on(names).policy();
    assert_eq!(policy.carve_outs().len(), NAMES.len(), "{policy:#?}");
}

#[test]
fn a_git_file_above_the_working_directory_protects_its_git_directory() {
    let names = FakeNames::default()
        .file_with("/src/tree/.git", b"gitdir: /src/main/.git/worktrees/tree")
        .directory("/src/main/.git/worktrees/tree")
        .directory("/src/tree/sub");
    asked(&["write /src"]).on(names).cwd("/src/tree/sub").gives(&[
        ("/src/tree/.git", Read),
        ("/src/main/.git/worktrees/tree/config", Read),
        ("/src/main/a", Write),
    ]);
}

#[test]
fn the_working_directory_grants_no_write_access_below_a_protected_name() {
    for name in NAMES {
        for below in ["", "/hooks", "/a/b"] {
            let path = format!("/src/{name}{below}");
            let names = FakeNames::default().directory(&path).directory("/src");
            for line in ["write cwd", "write tmpdir", "write project_roots"] {
                let asked = asked(&["read root", line]).on(names.clone());
                let asked = asked.cwd(&path).workspace(&path).tmpdir(&path);
                let error = asked.error();
                assert!(
                    matches!(&error, PolicyError::ImplicitRoot { protected, .. }
                        if *protected == Path::new("/src").join(name)),
                    "{line} in {path}: {error}"
                );
            }
            // An explicit entry is allowed, and so is read access.
            for line in [&*format!("write {path}"), "read cwd", "read tmpdir"] {
                let asked = asked(&["read root", line]).on(names.clone());
                asked.cwd(&path).tmpdir(&path).policy();
            }
            let explicit = asked(&["write project_roots"]).on(names).cwd("/src").workspace(&path);
            explicit.gives(&[(&path, Write)]);
        }
    }
    // A repository below a protected name is a workspace.
    let tree = "/home/me/.codex/worktrees/1/app";
    let names = FakeNames::default().file(format!("{tree}/.git")).directory(format!("{tree}/src"));
    asked(&["write cwd"])
        .on(names)
        .cwd(&format!("{tree}/src"))
        .gives(&[(&format!("{tree}/src/a"), Write), ("/home/me/.codex", Deny)]);
}

#[test]
fn protected_paths_are_read_only_inside_writable_directories() {
    let names = FakeNames::default()
        .directory("/tmp/run")
        .symlink("/tmp/theirs", "/etc")
        .held("/tmp/theirs", Hold::OutOfReach);
    let mut asked_for = asked(&["write /tmp", "write /src"]).on(names.clone());
    asked_for.around.protected_paths =
        ["/tmp/run", "/tmp/theirs", "/tmp/missing", "/home/me/.state"].map(PathBuf::from).into();
    asked_for.gives(&[
        ("/tmp/run/file", Read),
        ("/tmp/missing", Read),
        ("/tmp/a", Write),
        // Protection alone does not grant read access.
        ("/home/me/.state", Deny),
    ]);
    let all = asked(&["write /tmp/run"]).on(names);
    let mut asked_for = all.clone();
    asked_for.around.protected_paths = vec!["/tmp/run".into()];
    asked_for.gives(&[("/tmp/run", Read)]);
}

#[test]
fn a_writable_file_needs_no_protected_names() {
    let names = FakeNames::default().file("/src/notes").directory("/src");
    let policy = asked(&["write /src/notes"]).on(names).policy();
    assert_eq!(policy.rules().len(), 1, "{policy:?}");
}

#[test]
fn a_symlink_cannot_be_protected() {
    for name in NAMES {
        let names = FakeNames::default().symlink(format!("/src/{name}"), "/elsewhere");
        for lines in [&["write /src"][..], &["read root", "write project_roots"]] {
            let error = asked(lines).on(names.clone()).workspace("/src").error();
            let link = Path::new("/src").join(name);
            assert!(matches!(error, PolicyError::ProtectedLink { path } if path == link));
        }
        asked(&["read /src"]).on(names).gives(&[("/src", Read)]);
    }
}

#[test]
fn a_symlink_named_by_an_entry_cannot_be_protected() {
    let names = FakeNames::default().symlink("/src/.git", "/repo").directory("/repo");
    for line in ["read /src/.git", "deny /src/.git", "write /src/.git"] {
        assert!(asked(&["write /src", line]).on(names.clone()).resolve().is_err(), "{line}");
    }
    // The target of the symlink is writable anyway.
    asked(&["write /src", "write /repo", "write /src/.git"]).on(names).gives(&[("/repo", Write)]);
}

fn worktree(pointer: &[u8]) -> FakeNames {
    FakeNames::default()
        .file_with("/src/tree/.git", pointer)
        .directory("/src/main/.git/worktrees/tree")
        .directory("/src/tree/odd ")
}

#[test]
fn a_git_file_protects_its_git_directory() {
    for pointer in [
        &b"gitdir: /src/main/.git/worktrees/tree"[..],
        b"gitdir: /src/main/.git/worktrees/tree\n",
        b"gitdir: ../main/.git/worktrees/tree\r\n",
    ] {
        for lines in [&["write /src"][..], &["write /src", "read /src/tree/.git"]] {
            asked(lines).on(worktree(pointer)).workspace("/src/tree").gives(&[
                ("/src/tree/.git", Read),
                ("/src/tree/a", Write),
                ("/src/main/.git/worktrees/tree", Read),
                ("/src/main/.git/worktrees/tree/config", Read),
                ("/src/main/a", Write),
            ]);
        }
    }
}

#[test]
fn the_directory_common_to_worktrees_is_protected() {
    let names = worktree(b"gitdir: ../main/.git/worktrees/tree")
        .file_with("/src/main/.git/worktrees/tree/commondir", b"../..\n");
    asked(&["write /src"]).on(names).workspace("/src/tree").gives(&[
        ("/src/main/.git", Read),
        ("/src/main/.git/hooks", Read),
        ("/src/main/a", Write),
    ]);
}

#[test]
fn a_git_directory_outside_writable_directories_is_left_alone() {
    asked(&["write /src/tree"])
        .on(worktree(b"gitdir: ../main/.git/worktrees/tree"))
        .gives(&[("/src/main/.git", Deny), ("/src/tree/.git", Read)]);
    asked(&["read root", "write /src/tree"])
        .on(worktree(b"gitdir: ../main/.git/worktrees/tree"))
        .gives(&[("/src/main/.git/worktrees/tree", Read)]);
}

#[test]
fn a_git_directory_may_be_granted_by_its_path() {
    asked(&["write /src", "write /src/main/.git/worktrees/tree"])
        .on(worktree(b"gitdir: ../main/.git/worktrees/tree"))
        .workspace("/src/tree")
        .gives(&[("/src/main/.git/worktrees/tree", Write), ("/src/tree/.git", Read)]);
}

#[test]
fn only_the_bytes_that_git_strips_are_stripped() {
    asked(&["write /src"])
        .on(worktree(b"gitdir: odd \n"))
        .workspace("/src/tree")
        .gives(&[("/src/tree/odd ", Read), ("/src/tree/odd", Write)]);
    for no_pointer in [&b""[..], b"gitdir: ", b"gitdir: \n", b"gitdir:odd", b"something else"] {
        asked(&["write /src"]).on(worktree(no_pointer)).workspace("/src/tree").gives(&[
            ("/src/tree/.git", Read),
            ("/src/tree/odd", Write),
            ("/src/tree", Write),
        ]);
    }
}

#[test]
fn a_git_directory_behind_a_replaceable_link_is_an_error() {
    let names = worktree(b"gitdir: /src/link/.git").symlink("/src/link", "/src/main");
    let error = asked(&["write /src"]).on(names).workspace("/src/tree").error();
    assert!(
        matches!(&error, PolicyError::ReplaceableLink { link, .. } if link == Path::new("/src/link")),
        "{error}"
    );
}

#[test]
fn an_unreadable_git_name_is_an_error() {
    let names = FakeNames::default().forbidden("/src/.git");
    let error = asked(&["write /src"]).on(names).error();
    assert!(matches!(error, PolicyError::UnreadableProtected { .. }), "{error}");
}

#[test]
fn inside_a_granted_protected_name_nothing_is_protected() {
    for name in NAMES {
        let line = format!("write /src/{name}");
        for lines in [&["write /src", &line][..], &[&line]] {
            let inside = NAMES.map(|inside| (format!("/src/{name}/{inside}"), Write));
            let expected: Vec<_> = inside.iter().map(|(path, access)| (&**path, *access)).collect();
            asked(lines).gives(&expected);
            asked(lines).workspace(&format!("/src/{name}")).gives(&expected);
        }
    }
    // Write access to everything does not name `.git` explicitly.
    asked(&["write root"]).workspace("/src/.git").gives(&[("/src/.git/.agents", Read)]);
}

const FOREIGN: Hold = Hold::Foreign { owner: 1000 };

/// A `/tmp/.git` of another user, in each form.
fn planted(hold: Hold) -> [(&'static str, FakeNames); 5] {
    let tree = || {
        FakeNames::default().directory("/tmp").directory("/src/app/docs").held("/tmp/.git", hold)
    };
    [
        ("pointer", tree().file_with("/tmp/.git", b"gitdir: /src/app/docs\n")),
        // For example a file without read permission, or a pipe.
        ("unreadable", tree().unreadable("/tmp/.git")),
        ("directory", tree().directory("/tmp/.git")),
        ("link", tree().symlink("/tmp/.git", "/src/app/docs")),
        ("broken link", tree().symlink("/tmp/.git", "nowhere")),
    ]
}

#[test]
fn another_users_irreplaceable_name_changes_nothing() {
    for lines in [
        &["read root", "write /src/app", "write slash_tmp"][..],
        &["read root", "write /src/app", "write tmpdir"],
        &["read root", "write /src/app", "write /tmp"],
    ] {
        for (form, names) in planted(Hold::OutOfReach) {
            let asked = asked(lines).tmpdir("/tmp").on(names);
            let policy = asked.resolve().unwrap_or_else(|error| panic!("{form}: {error}"));
            for (path, access) in [
                ("/src/app/docs", Write),
                ("/src/app/.git", Read),
                ("/tmp/.agents", Read),
                ("/tmp/a", Write),
                // A file is protected, whatever its mode allows. A symlink cannot be covered.
                ("/tmp/.git", if form.ends_with("link") { Write } else { Read }),
            ] {
                assert_eq!(policy.access(Path::new(path)), access, "{form}: {path}");
            }
        }
    }
}

#[test]
fn another_users_replaceable_name_is_protected_but_not_followed() {
    for line in ["write slash_tmp", "write /tmp"] {
        for (form, names) in planted(FOREIGN) {
            let asked = asked(&["read root", "write /src/app", line]).on(names);
            let is_temporary = line == "write slash_tmp";
            match (form.ends_with("link"), asked.resolve()) {
                (true, Err(error)) if !is_temporary => {
                    let text = error.to_string();
                    assert!(text.contains("user 1000") && text.contains("/tmp/.git"), "{text}");
                }
                // A link cannot be covered, and must not let another user block sandboxes.
                (true, Ok(policy)) if is_temporary => {
                    assert_eq!(policy.access(Path::new("/tmp/.agents")), Read, "{form}");
                    assert_eq!(policy.access(Path::new("/src/app/.git")), Read, "{form}");
                }
                (false, Ok(policy)) => {
                    assert_eq!(policy.access(Path::new("/tmp/.git")), Read, "{form}");
                    assert_eq!(policy.access(Path::new("/src/app/docs")), Write, "{form}");
                }
                (_, result) => panic!("{form}: {result:?}"),
            }
        }
    }
}

#[test]
fn a_git_file_in_a_temporary_directory_is_not_followed() {
    let names = FakeNames::default()
        .file_with("/tmp/.git", b"gitdir: /src/app/docs")
        .file_with("/tmp/me/.git", b"gitdir: /src/app/docs")
        .directory("/src/app/docs");
    let asked =
        asked(&["write /src/app", "write tmpdir", "write slash_tmp"]).on(names).tmpdir("/tmp/me");
    let expected = [("/tmp/.git", Read), ("/tmp/me/.git", Read), ("/src/app/docs", Write)];
    asked.gives(&expected);
    // In a directory that is also a project, the file is followed.
    asked.clone().workspace("/tmp/me").gives(&[("/src/app/docs", Read)]);
}
