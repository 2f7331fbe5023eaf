"""Mutants of what the coordinator does when storage is full, another than it thinks, or gone."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

DATABASE = "server/store/database.py"
SERVED = "server/store/served.py"

_STORE = "tests/server/store/test_store_contract.py::"
_SERVED_TESTS = "tests/server/store/test_served_database.py::"
_LOGS = "tests/ops/logs/test_logs.py::"
_FAULTS = "tests/server/conductor/test_storage_faults.py::"

MUTANTS = (
    Mutant(
        name="probe-writes",
        disables="the write by which readiness is proven",
        file=DATABASE,
        old="SET version_num = version_num",
        new="SET version_num = version_num WHERE 1 = 0",
        tests=(_STORE + "test_whether_it_can_be_written_is_found_out_by_writing",),
    ),
    Mutant(
        name="full-is-named",
        disables="telling a database that takes no write from one that is away",
        file=DATABASE,
        old="    if why is not None:\n        return StoreUnwritableError",
        new="    if why is None:\n        return StoreUnwritableError",
        tests=(_STORE + "test_a_database_that_takes_no_write_says_so",),
    ),
    Mutant(
        name="absent-file",
        disables="the refusal of a SQLite file that is not there",
        file=DATABASE,
        old="    if not create and not path.exists():\n",
        new="    create = True\n    if not create and not path.exists():\n",
        tests=(_SERVED_TESTS + "test_a_sqlite_file_is_made_only_by_founding_and_restoring",),
    ),
    Mutant(
        name="file-that-goes",
        disables="mode=rw, without which a file that went is made anew",
        file=DATABASE,
        old='"rwc" if create else "rw"',
        new='"rwc"',
        tests=(_SERVED_TESTS + "test_a_file_that_goes_while_it_is_in_use_is_not_made_anew",),
    ),
    Mutant(
        name="served-database",
        disables="the refusal of another database than the one that is served",
        file=SERVED,
        old="_place(given) != _place(served)",
        new="_place(given) != _place(given)",
        tests=(
            _SERVED_TESTS + "test_another_database_than_the_served_one_is_not_opened",
            _SERVED_TESTS + "test_the_same_database_in_other_words_is_no_move",
        ),
    ),
    Mutant(
        name="served-database-asked",
        disables="the look at what is served where no URL is configured",
        file=SERVED,
        old="_text(served or _default(data_dir))",
        new="_text(_default(data_dir))",
        tests=(
            _SERVED_TESTS
            + "test_a_command_without_the_services_environment_finds_the_services_database",
        ),
    ),
    Mutant(
        name="recorded-password",
        disables="the allow-list of what is written down of a URL",
        file=SERVED,
        old="parsed.query.items() if name in _KEPT",
        new="parsed.query.items()",
        tests=(_SERVED_TESTS + "test_the_record_is_private_and_has_no_password",),
    ),
    Mutant(
        name="recorded-elsewhere",
        disables="the relative path of SQLite inside the data directory",
        file=SERVED,
        old="str(path.relative_to(data_dir) if inside else path)",
        new="str(path)",
        tests=(_SERVED_TESTS + "test_a_copy_of_the_directory_is_served_from_its_own_file",),
    ),
    Mutant(
        name="log-raises",
        disables="the logger that cannot raise",
        file="ops/logs/setup.py",
        old="        except (OSError, ValueError):\n",
        new="        except ZeroDivisionError:\n",
        tests=(_LOGS + "test_a_line_that_cannot_be_written_is_counted_and_raises_nothing",),
    ),
    Mutant(
        name="driver-supervised",
        disables="driving on after a defect of driving itself",
        file="server/conductor/storage_faults.py",
        old="        except Exception:\n",
        new="        except ImportError:\n",
        tests=(_FAULTS + "test_a_defect_of_driving_itself_leaves_no_run_that_nobody_drives",),
    ),
)
