# Formula for a tap. The digest is that of the source archive (docs/releasing.md). What pip would fetch is installed
# by pip into a virtual environment of the formula: torch has no source that Homebrew builds.
class Ggferry < Formula
  desc "Converts legacy and training formats of language-model weights to GGUF v3, and proves the result"
  homepage "https://pypi.org/project/ggferry/"
  url "https://pypi.org/packages/source/g/ggferry/ggferry-0.1.0.tar.gz"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    system "python3.13", "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--quiet", buildpath
    bin.install_symlink libexec/"bin/ggferry"
    bin.install_symlink libexec/"bin/convert" => "ggferry-convert"
    man1.install_symlink Dir[libexec/"share/man/man1/*.1"]
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/ggferry --version")
    assert_match "q4_k_m", shell_output("#{bin}/ggferry types")
  end
end
