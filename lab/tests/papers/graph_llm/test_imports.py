import subprocess
import sys


def test_a_machine_with_a_gpu_needs_neither_pandas_nor_gguf():
    code = (
        "import sys\n"
        "for name in ('pandas', 'gguf', 'lightgbm'): sys.modules[name] = None\n"
        "import lab.papers.graph_llm.study, lab.papers.dnn_occu.study, lab.papers.dnn_occu.fitting"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
