"""Mutants of the digest tree: its encoding, and each check between a silo's disk and the sum."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

TREE = "secagg/digest_tree.py"
ACCUMULATOR = "server/attempt/accumulator.py"
STREAM = "server/attempt/stream.py"
SPOOL = "silo_agent/attempt/spool.py"
UPLOAD = "silo_agent/line/upload.py"

_TREE_TESTS = "tests/secagg/test_digest_tree.py::"
_UPLOADS = "tests/server/attempt/test_accumulator_tree.py::"
_STREAMS = "tests/server/attempt/test_stream.py::"
_SPOOLS = "tests/silo_agent/attempt/test_spool.py::"
_RESUMED = "tests/system/integration/faults/test_upload_resume.py::"
_ENCODED = (_TREE_TESTS + "test_leaves_and_root_are_those_of_the_specification",)
_LISTS = (_TREE_TESTS + "test_a_leaf_list_that_is_not_the_signed_one_is_refused",)
_CHUNKS = (_TREE_TESTS + "test_a_chunk_stands_at_its_own_index_with_its_own_length",)

MUTANTS = (
    Mutant(
        name="leaf-index",
        disables="the index in a leaf",
        file=TREE,
        old="_LEAF.pack(0, index, length)",
        new="_LEAF.pack(0, 0, length)",
        tests=_ENCODED,
    ),
    Mutant(
        name="leaf-domain",
        disables="the byte that parts leaves from roots",
        file=TREE,
        old="_LEAF.pack(0, index, length)",
        new="_LEAF.pack(1, index, length)",
        tests=_ENCODED,
    ),
    Mutant(
        name="root-digest-id",
        disables="the digest's id in the root",
        file=TREE,
        old="_ROOT.pack(1, hybrid.SUITE, digest_id, CHUNK_BYTES, count, total_bytes)",
        new="_ROOT.pack(1, hybrid.SUITE, SHA256, CHUNK_BYTES, count, total_bytes)",
        tests=_ENCODED,
    ),
    Mutant(
        name="root-total",
        disables="the total length in the root",
        file=TREE,
        old="CHUNK_BYTES, count, total_bytes)",
        new="CHUNK_BYTES, count, count)",
        tests=_ENCODED,
    ),
    Mutant(
        name="leaf-list-length",
        disables="the exact length of a leaf list from outside",
        file=TREE,
        old="    if len(leaves) != LEAF_BYTES * chunk_count(total_bytes):\n        raise Ver",
        new="    if not leaves:\n        raise Ver",
        tests=_LISTS,
    ),
    Mutant(
        name="leaf-list-root",
        disables="the signed root of a leaf list",
        file=TREE,
        old="    if not hmac.compare_digest(root_of(leaves, total_bytes, digest_id), root):",
        new="    if not root_of(leaves, total_bytes, digest_id):",
        tests=_LISTS,
    ),
    Mutant(
        name="chunk-leaf",
        disables="a chunk's leaf",
        file=TREE,
        old="    if not hmac.compare_digest(leaf(index, chunk, digest_id), expected):",
        new="    if len(leaf(index, chunk, digest_id)) != len(expected):",
        tests=_CHUNKS,
    ),
    Mutant(
        name="upload-leaf-list",
        disables="the check of the leaf list that opens an upload",
        file=ACCUMULATOR,
        old="""        digest_tree.check_leaves(
            leaves, self.length_bytes, self.digest_id, self.sha256, silo=self.silo_id
        )
""",
        new="",
        tests=(_UPLOADS + "test_no_chunk_is_taken_before_the_leaf_list_of_the_signed_root",),
    ),
    Mutant(
        name="upload-leaf-list-v1",
        disables="the refusal of a leaf list in suite v1",
        file=ACCUMULATOR,
        old="            if leaves:\n",
        new="            if not isinstance(leaves, bytes):\n",
        tests=(_UPLOADS + "test_a_leaf_list_has_no_place_in_suite_v1",),
    ),
    Mutant(
        name="upload-chunk-leaf",
        disables="the check of each chunk before it is written",
        file=ACCUMULATOR,
        old="digest_tree.check_chunk(self._leaves, index, content, self.digest_id, ",
        new="dict(",
        tests=(_UPLOADS + "test_a_bad_chunk_is_not_written_and_the_upload_goes_on_at_its_border",),
    ),
    Mutant(
        name="upload-chunk-whole",
        disables="the borders of chunks",
        file=ACCUMULATOR,
        old="            if past_border or len(content) != whole:\n",
        new="            if len(content) > whole:\n",
        tests=(_UPLOADS + "test_only_whole_chunks_are_taken",),
    ),
    Mutant(
        name="spool-left-by-another",
        disables="the hash of what an earlier process left of an upload",
        file=ACCUMULATOR,
        old="        self._left_by_another = kept > 0\n",
        new="        self._left_by_another = False\n",
        tests=(_UPLOADS + "test_what_an_earlier_process_left_is_hashed_while_it_is_folded",),
    ),
    Mutant(
        name="spool-border",
        disables="the border at which a spool goes on after a restart",
        file=ACCUMULATOR,
        old="        return found_bytes // MAX_CHUNK_BYTES * MAX_CHUNK_BYTES\n",
        new="        return found_bytes\n",
        tests=(_UPLOADS + "test_a_spool_goes_on_at_the_border_below_its_end",),
    ),
    Mutant(
        name="stream-offset",
        disables="the offset at which a stream of suite v2 begins",
        file=STREAM,
        old="        if upload.digest_id and offset_bytes != upload.received_bytes:\n",
        new="        if upload.digest_id and offset_bytes % MAX_CHUNK_BYTES:\n",
        tests=(_STREAMS + "test_a_stream_begins_where_the_upload_goes_on",),
    ),
    Mutant(
        name="stream-end",
        disables="the end of a stream at the upload's length",
        file=STREAM,
        old="            if not missing:\n",
        new="            if not missing:\n                return\n            if missing < 0:\n",
        tests=(_STREAMS + "test_what_runs_past_the_end_is_refused",),
    ),
    Mutant(
        name="spool-tree",
        disables="the leaf list beside a spooled upload",
        file=SPOOL,
        old="digest_tree.check_leaves(leaves, header.length_bytes, digest_id, ",
        new="divmod(header.length_bytes, digest_id + 1) and str(",
        tests=(_SPOOLS + "test_another_leaf_list_is_neither_written_nor_read",),
    ),
    Mutant(
        name="opening-leaves",
        disables="the leaf list in the opening of an upload",
        file=UPLOAD,
        old="                leaves=self._spool.leaves,\n",
        new="",
        tests=(_RESUMED + "test_every_opening_of_suite_v2_carries_the_leaf_list",),
    ),
)
