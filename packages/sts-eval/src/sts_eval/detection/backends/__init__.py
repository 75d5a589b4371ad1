"""The two detectors, detectron2's and torchvision's, behind one interface."""
