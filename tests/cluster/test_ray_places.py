"""What Ray is told of a worker's process."""

from __future__ import annotations

from rlhf.cluster.ray_places import quoted_python


def test_a_python_in_a_folder_with_spaces_is_quoted_for_rays_shell_and_any_other_is_left_to_ray() -> None:
    assert quoted_python("/a folder/python") == {"py_executable": "'/a folder/python'"}
    assert quoted_python("/folder/python") == {}
