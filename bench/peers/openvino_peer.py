"""OpenVINO GenAI, continuous batching, as `bench/compare.py` runs it; the model is what `export_openvino.py` made."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino_genai as og
from workload import Job, main


class OpenVino:
    """One pipeline; requests are added together and stepped together."""

    def __init__(self, job: Job) -> None:
        scheduler = og.SchedulerConfig()
        scheduler.max_num_batched_tokens = 4096
        scheduler.max_num_seqs = max(job.n_seqs, 1)
        scheduler.num_kv_blocks = 2 * (-(-job.n_cells // 32) + 2 * job.n_seqs)
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": job.n_threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipe = og.ContinuousBatchingPipeline(str(job.model), scheduler, "CPU", properties)
        self.handles: list[og.GenerationHandle] = []
        self.got: list[list[int]] = []
        self.next_id = 0

    def start(self, prompts: list[list[int]]) -> list[int]:
        for handle in self.handles:
            handle.stop()
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
        config = og.GenerationConfig()
        config.max_new_tokens = 4096
        config.ignore_eos = True
        config.do_sample = False
        self.handles = []
        for prompt in prompts:
            tensor = ov.Tensor(np.array([prompt], np.int64))
            self.handles.append(self.pipe.add_request(self.next_id, tensor, config))
            self.next_id += 1
        self.got = [[] for _ in prompts]
        while not all(self.got):
            self._step()
        return [line[0] for line in self.got]

    def steps(self, n: int) -> list[list[int]]:
        before = [len(line) for line in self.got]
        for _ in range(n):
            self._step()
        return [line[b:] for line, b in zip(self.got, before, strict=True)]

    def _step(self) -> None:
        self.pipe.step()
        for handle, line in zip(self.handles, self.got, strict=True):
            while handle.can_read():
                for output in handle.read().values():
                    line.extend(output.generated_ids)


if __name__ == "__main__":
    main(OpenVino, cannot={"unified_32"})  # its cache is paged, one way only
